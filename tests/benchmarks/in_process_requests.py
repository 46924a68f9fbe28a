"""Sends requests to a proxy in this process, and counts their instructions; see `instructions.py`.

python -m tests.benchmarks.in_process_requests CHECKOUT QUESTIONS REQUESTS UPSTREAM LIBRARY
"""

import asyncio
import ctypes
import gc
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn
import uvloop
from uvicorn.server import ServerState

from tests.benchmarks.load import PATH, QUESTION, body

_CONNECTIONS = 16
_WARM_UP = 160
_KEEPALIVE_SECONDS = 1e5
"""Connections to the upstream stay open, although Valgrind takes seconds between two requests."""
_GC_THRESHOLD = 200_000  # As in a running proxy.
_BODY = b"x" * 400
HEAD = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %%d\r\n\r\n" % PATH.encode()
MakeProtocol = Callable[[], Any]
Flush = Callable[[], Awaitable[None]]


class Client(asyncio.Transport):
    """A client's connection in memory. `answer` resolves when a response is complete."""

    def __init__(self) -> None:
        super().__init__()
        self._received = b""
        self.answer: asyncio.Future[bytes] | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._received += data
        head, separator, rest = self._received.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if separator and len(rest) == int(length) and self.answer is not None:
            self.answer.set_result(head)
            self._received = b""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 8000)}.get(name, default)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def exclude_loaded_objects() -> None:
    """Collect garbage as rarely as a running proxy."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


@asynccontextmanager
async def proxy_in_process(upstream: str, **cache: Any) -> AsyncIterator[tuple[MakeProtocol, Flush, Any]]:
    """Yield a function that makes a connection's protocol, a function that writes the journal, and the services.

    `cache` are settings of the response cache.
    """
    # `main` has put the checkout into the path.
    from kvproxy.http.serve import make_server
    from kvproxy.http.services import build_services
    from kvproxy.journal import journal
    from kvproxy.journal.journal import StoredJournal
    from kvproxy.settings import load_settings
    from kvproxy.telemetry.process_log import log_to_stderr
    from kvproxy.upstreams import connection_pool

    journal._INTERVAL = 1e5
    connection_pool._KEEPALIVE_SECONDS = _KEEPALIVE_SECONDS
    settings = load_settings(upstreams=[{"url": upstream}], data=Path.cwd() / "data", cache=cache)
    log_to_stderr(settings.log)
    services = build_services(settings)
    server = make_server(services)
    config = server.config
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.lifespan.startup()

    def make_protocol() -> Any:
        state = server.lifespan.state
        return config.http_protocol_class(config=config, server_state=server.server_state, app_state=state)  # type: ignore[call-arg]

    async def flush() -> None:
        assert isinstance(services.journal, StoredJournal)
        await asyncio.to_thread(services.journal.flush)

    yield make_protocol, flush, services
    await server.lifespan.shutdown()


@asynccontextmanager
async def _floor(upstream: str, *, forwards: bool) -> AsyncIterator[tuple[MakeProtocol, Flush, Any]]:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    connector = aiohttp.TCPConnector(keepalive_timeout=_KEEPALIVE_SECONDS)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def app(scope: Any, receive: Any, send: Any) -> None:
            content = (await receive())["body"]
            if forwards:
                async with session.post(upstream + PATH, data=content) as response:
                    content = await response.read()
            else:
                content = _BODY
            headers = [(b"content-length", str(len(content)).encode())]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": content})

        config = uvicorn.Config(app, access_log=False, log_config=None)
        config.load()
        state = ServerState()
        yield lambda: HttpToolsProtocol(config=config, server_state=state, app_state={}), lambda: asyncio.sleep(0), None


async def _run(checkout: str, questions: str, requests: int, upstream: str, library: str) -> None:
    switches, numbers = ctypes.CDLL(library), iter(range(10**9))
    floor = _floor(upstream, forwards=questions == "new")
    async with (
        floor if checkout == "floor" else proxy_in_process(upstream, semantic=False) as (make_protocol, flush, _)
    ):
        connections = [(make_protocol(), Client()) for _ in range(_CONNECTIONS)]
        for protocol, client in connections:
            protocol.connection_made(client)

        async def send(protocol: Any, client: Client, count: int) -> None:
            for _ in range(count):
                question = QUESTION if questions == "same" else f"How do I repair the printer of case {next(numbers)}?"
                content = body(question)
                client.answer = asyncio.get_running_loop().create_future()
                protocol.data_received(HEAD % len(content) + content)
                assert b" 200 " in await client.answer

        async def send_all(count: int) -> None:
            await asyncio.gather(*(send(*connection, count // _CONNECTIONS) for connection in connections))
            # The store writes after the response.
            await asyncio.sleep(1)

        exclude_loaded_objects()
        await send_all(_WARM_UP)
        await flush()
        switches.start()
        await send_all(requests)
        switches.stop()
        switches.start()
        await flush()
        switches.stop()


def main() -> None:
    checkout, questions, requests, upstream, library = sys.argv[1:]
    sys.path.insert(0, checkout)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        uvloop.run(_run(checkout, questions, int(requests), upstream, library))
        os.chdir("/")


if __name__ == "__main__":
    main()
