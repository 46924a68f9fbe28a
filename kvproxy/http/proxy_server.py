"""Serves the app until a signal, and reloads settings on SIGHUP."""

import asyncio
import contextlib
import functools
import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import cast

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from kvproxy.errors import SettingsError, ShuttingDown
from kvproxy.http import client_connection
from kvproxy.http.client_connection import LimitedProtocol
from kvproxy.http.deadlines_and_disconnects import Deadlines
from kvproxy.http.service_manager import notify_service_manager
from kvproxy.optional_packages import require_names
from kvproxy.settings.limits import LimitSettings

_CHECK_SECONDS = 1.0
"""Maximum interval between two checks of all connections."""
_ERROR_SECONDS = 1.0
"""At shutdown, time for sending errors to the remaining requests before their connections are aborted."""
_LAST_REQUEST_SECONDS = 1.0
"""At shutdown, idle time after which a connection is closed: a request that arrives at that moment is lost."""
_POLL_SECONDS = 0.02
_UNSENT_BYTES = 128 * 1024
"""Maximum bytes per connection that the kernel buffers before it sends them."""
ACCEPTS_PER_TURN = 256
"""Maximum connections of one listening socket that a turn of the event loop accepts."""
OVERRIDDEN = "handle_exit", "main_loop", "shutdown", "startup"
"""Methods of uvicorn's server that `ProxyServer` overrides."""
USED = "_captured_signals", "config", "force_exit", "server_state"
"""Attributes of uvicorn's server that `ProxyServer` uses."""
_log = logging.getLogger("kvproxy")
# Redundant messages, or those with which clients could fill the log: a relayed response that breaks off, invalid HTTP,
# requests that end at the shutdown.
_NOISE = (
    "without completing response",
    "Invalid HTTP request",
    "Unsupported upgrade request",
    "timeout graceful shutdown",
)


class ProxyServer(uvicorn.Server):
    """Serves the app until SIGTERM or SIGINT.

    A thread calls `on_ready` as soon as the proxy accepts connections. SIGHUP calls `reload`. `on_limit` receives the setting's
    name when a limit is reached. The app `refuse` answers requests on connections beyond `limits.connections`. Raises
    SettingsError for a version of uvicorn without the private names that are used, or if another process opens the port.
    """

    def __init__(
        self,
        app: Starlette,
        limits: LimitSettings,
        deadlines: Deadlines,
        on_limit: Callable[[str], None],
        refuse: ASGIApp,
        reload: Callable[[], Awaitable[None]] | None = None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        require_names("uvicorn", HttpToolsProtocol, client_connection.OVERRIDDEN + client_connection.USED)
        require_names("uvicorn", RequestResponseCycle, client_connection.USED_OF_CYCLES)
        require_names("uvicorn", uvicorn.Server, OVERRIDDEN + USED)
        protocol = functools.partial(LimitedProtocol, limits=limits, on_limit=on_limit, refuse=refuse)
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("type[asyncio.Protocol]", protocol),
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                # The exchange middleware adds a missing date.
                date_header=False,
                # A task that still runs after this is stuck.
                timeout_graceful_shutdown=int(limits.drain_seconds + 10 * _ERROR_SECONDS),
            )
        )
        logging.getLogger("uvicorn.error").addFilter(
            lambda record: not any(noise in str(record.msg) for noise in _NOISE)
        )
        self._limits = limits
        self._deadlines = deadlines
        self._reload = reload
        self._on_ready = on_ready
        self._listeners: list[socket.socket] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._wants_reload = False
        self._reloading: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or []:
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                # Connections inherit it. The kernel would buffer megabytes for each client that does not read.
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        # Listens on the sockets when the app is ready.
        await super().startup(sockets)
        # uvloop closes a socket on which it cannot listen.
        if any(listener.fileno() == -1 for listener in sockets or []):
            await self.lifespan.shutdown()
            raise SettingsError(
                "cannot listen: another process has opened the port since the start; choose another with --port"
            )
        # libuv accepts one connection per turn. Under load, a turn takes milliseconds, and a burst of new connections would wait
        # for seconds.
        for listener in sockets or []:
            copy = listener.dup()
            copy.setblocking(False)
            self._listeners.append(copy)
            asyncio.get_running_loop().add_reader(copy, self._accept_waiting, copy)
        notify_service_manager("READY=1")

    def _accept_waiting(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                connection = listener.accept()[0]
            except OSError:
                # No further connection waits, or libuv closes the next one because the process has too many open files.
                return
            task = asyncio.create_task(self._connect(connection))
            self._connecting.add(task)
            task.add_done_callback(functools.partial(self._on_connected, connection))

    async def _connect(self, connection: socket.socket) -> None:
        make_protocol = functools.partial(
            cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(make_protocol, connection)
            return
        connection.close()

    def _on_connected(self, connection: socket.socket, task: "asyncio.Task[None]") -> None:
        self._connecting.discard(task)
        # A stop may cancel the task before its first step.
        if task.cancelled():
            connection.close()

    async def _stop_accepting(self, sockets: list[socket.socket]) -> None:
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
            # The kernel resets connections that wait.
            self._accept_waiting(listener)
            listener.close()
        for server in self.servers:
            server.close()
        for original in sockets:
            original.close()
        if self._connecting:
            await asyncio.wait(self._connecting, timeout=_ERROR_SECONDS)

    async def main_loop(self) -> None:
        looking = asyncio.create_task(self._check_connections())
        loop = asyncio.get_running_loop()
        announcement = asyncio.create_task(asyncio.to_thread(self._on_ready))
        if self._reload is not None and threading.current_thread() is threading.main_thread():
            loop.add_signal_handler(signal.SIGHUP, self._request_reload)
        try:
            await super().main_loop()
        finally:
            looking.cancel()
            announcement.cancel()

    def _request_reload(self) -> None:
        self._wants_reload = True
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(self._reload_until_applied())

    async def _reload_until_applied(self) -> None:
        # Signals during a reload cause one more.
        while self._wants_reload and self._reload is not None:
            self._wants_reload = False
            await self._reload()

    async def _check_connections(self) -> None:
        limits = self._limits
        shortest = min(limits.header_seconds, limits.idle_seconds, limits.stalled_seconds)
        pause = min(_CHECK_SECONDS, shortest / 4)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(pause)
            for connection in self._connections():
                connection.close_if_too_slow(loop.time())

    def _connections(self) -> list[LimitedProtocol]:
        return [connection for connection in self.server_state.connections if isinstance(connection, LimitedProtocol)]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait up to `drain_seconds` for requests in flight, then send them an error and abort their connections."""
        self._deadlines.stopping = True
        notify_service_manager("STOPPING=1")
        _log.info("stopping; requests in flight: %d", len(self.server_state.tasks))
        await self._stop_accepting(sockets or [])
        loop = asyncio.get_running_loop()
        ends = loop.call_later(self._limits.drain_seconds, self._end_requests)
        cuts = loop.call_later(self._limits.drain_seconds + _ERROR_SECONDS, self._abort_connections)
        try:
            await self._end_idle_connections()
            await super().shutdown(sockets)
            if self.force_exit:
                await self._stop_immediately()
        finally:
            ends.cancel()
            cuts.cancel()

    async def _end_idle_connections(self) -> None:
        """Wait for the last request of each client that used its connection a moment ago."""
        loop, connections = asyncio.get_running_loop(), self._connections()
        seconds = min(_LAST_REQUEST_SECONDS, self._limits.drain_seconds)
        for connection in connections:
            connection.end_after_response()
        end = loop.time() + 2 * seconds
        while any(each.was_used_after(loop.time() - seconds) for each in connections):
            await asyncio.sleep(_POLL_SECONDS)
            if self.force_exit or loop.time() > end:
                break

    async def _stop_immediately(self) -> None:
        self._deadlines.end_all(_stopped())
        self._abort_connections()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=_ERROR_SECONDS)
        await self.lifespan.shutdown()

    def _end_requests(self) -> None:
        if count := len(self._connections()):
            _log.warning("the drain time is over; connections with requests to end: %s", count)
        self._deadlines.end_all(_stopped())

    def _abort_connections(self) -> None:
        for connection in self._connections():
            connection.transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Exit with code 0. uvicorn would raise the signal again after the shutdown."""
        super().handle_exit(sig, frame)
        self._captured_signals.clear()


def _stopped() -> ShuttingDown:
    return ShuttingDown("the proxy is being stopped: send the request again")
