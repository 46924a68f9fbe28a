"""Servers on free ports, each in a thread."""

import asyncio
import contextlib
import queue
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

import uvicorn
import uvicorn.server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvproxy.http.routes import EVERY_METHOD
from kvproxy.http.serve import make_server
from kvproxy.http.services import Services, build_services
from kvproxy.settings import Settings, load_settings
from tests.polling import until

_stopping: ContextVar[asyncio.Event | None] = ContextVar("_stopping", default=None)


class _Asyncio:
    """asyncio for uvicorn's server, which sleeps 0.1 s between its checks. A stopping server does not sleep."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        stopping = _stopping.get()
        if stopping is None:
            await asyncio.sleep(seconds)
        elif stopping.is_set():
            await asyncio.sleep(0.003)
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), seconds)


vars(uvicorn.server)["asyncio"] = _Asyncio()


def run_app(app: Any, port: int = 0) -> contextlib.AbstractContextManager[str]:
    """Serve an ASGI app on a port, by default a free one; yield its URL."""
    config = uvicorn.Config(
        app, log_level="warning", timeout_graceful_shutdown=1, date_header=False, server_header=False
    )
    return run_server(uvicorn.Server(config), port)


def run_upstream(
    answer: Callable[[Request], Awaitable[Response]], port: int = 0
) -> contextlib.AbstractContextManager[str]:
    """Serve an app that answers every request by one function; yield its URL."""
    return run_app(Starlette(routes=[Route("/{path:path}", answer, methods=EVERY_METHOD)]), port)


@contextlib.contextmanager
def run_server(server: uvicorn.Server, port: int = 0) -> Iterator[str]:
    """Run a server on a port, by default a free one; yield its URL."""
    running: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = queue.SimpleQueue()

    async def serve() -> None:
        stopping = asyncio.Event()
        _stopping.set(stopping)
        running.put((asyncio.get_running_loop(), stopping))
        await server.serve(sockets=[listener])

    def run() -> None:
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(serve())

    with socket.create_server(("127.0.0.1", port), backlog=512) as listener:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        loop, stopping = running.get(timeout=300)
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.002)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            # A closed loop belongs to a server that has ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(stopping.set)
            thread.join(timeout=300)


@contextlib.contextmanager
def run_connections(handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> Iterator[str]:
    """Handle raw connections; yield the URL. At the end, close the open connections.

    Closing a server of asyncio leaves its connections open, and a handler may wait on one for ever.
    """
    started: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = queue.SimpleQueue()
    writers: list[asyncio.StreamWriter] = []

    async def handle_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            await handle(reader, writer)
        finally:
            writer.close()

    async def serve() -> None:
        stopped = asyncio.Event()
        async with await asyncio.start_server(handle_one, "127.0.0.1", 0) as server:
            started.put((asyncio.get_running_loop(), stopped, server.sockets[0].getsockname()[1]))
            await stopped.wait()
        for writer in writers:
            writer.transport.abort()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    loop, stopped, port = started.get(timeout=300)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(timeout=300)


def until_stored(services: Services) -> None:
    """Wait until all responses are stored."""
    until(lambda: not len(services.cache.pending_writes), interval=0.001)


def end_after_report(app: ASGIApp) -> ASGIApp:
    """Delay the last part of each response until the exchange is reported.

    A client that has the response then finds its record and its metrics; the proxy itself reports a moment later.
    """

    async def delayed(scope: Scope, receive: Receive, send: Send) -> None:
        last: Message | None = None

        async def send_all_but_last(message: Message) -> None:
            nonlocal last
            if message["type"] == "http.response.body" and not message.get("more_body"):
                last = message
            else:
                await send(message)

        try:
            await app(scope, receive, send_all_but_last)
        finally:
            if last is not None:
                await send(last)

    return delayed


def waiting_clients(services: Services) -> int:
    """Return the number of clients that wait for a response of the backend."""
    return sum(shared.num_clients for shared in tuple(services.path.requests_in_flight._in_flight))


@contextlib.contextmanager
def run_proxy(
    settings: Settings, port: int = 0, clock: Callable[[], float] = time.time
) -> Iterator[tuple[str, Services]]:
    """Run a proxy; yield its URL and its services. It stops without draining requests, unless the settings require it."""
    if "drain_seconds" not in settings.limits.model_fields_set:
        limits = {"drain_seconds": 0.0}
        settings = settings.model_copy(update={"limits": settings.limits.model_copy(update=limits)})
        # As if by a flag, which a reload keeps.
        settings._flags["limits"] = settings._flags.get("limits", {}) | limits
    services = build_services(settings, clock)
    server = make_server(services)
    server.config.app = end_after_report(cast("ASGIApp", server.config.app))
    with run_server(server, port) as url:
        yield url, services


def run_front(data: Path, upstream: str, **settings: Any) -> contextlib.AbstractContextManager[tuple[str, Services]]:
    """Run a proxy in front of an upstream, which serves equal requests only; yield its URL and its services."""
    return run_proxy(load_settings(data=data, upstream=upstream, cache={"semantic": False}, **settings))
