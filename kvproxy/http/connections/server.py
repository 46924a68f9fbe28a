"""uvicorn's server with what it lacks: it looks after slow connections, and a signal ends it in order and with success."""

import asyncio
import contextlib
import functools
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import cast

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from kvproxy.errors import ShuttingDown
from kvproxy.http.connections.lifetimes import Lifetimes
from kvproxy.http.connections.protocol import LimitedProtocol
from kvproxy.settings.limits import LimitSettings

_LOOK_SECONDS = 1.0
"""Between two looks at all connections; shorter where a limit is."""
_LAST_WORDS = 1.0
"""Seconds that clients get to read the error that ended their requests."""
_IN_KERNEL = 128 * 1024
"""Bytes that the system may hold for a client beside those that are on their way."""
_log = logging.getLogger("kvproxy")
# Relaying an upstream that breaks off closes the connection on purpose, and says so itself; what a client sends that is no HTTP
# is its own fault, and could fill a log; a message for each request that is ended at the stop tells nothing.
_NOISE = (
    "without completing response",
    "Invalid HTTP request",
    "Unsupported upgrade request",
    "timeout graceful shutdown",
)


class ProxyServer(uvicorn.Server):
    """Serves the app until a signal comes.

    Args:
        app: the app.
        limits: bounds on connections.
        lifetimes: requests under way; they are ended when the drain time is over.
        limited: called with the name of a limit that was met.
        full: answers on connections beyond the limit.
        reload: called at SIGHUP.
    """

    def __init__(
        self,
        app: Starlette,
        limits: LimitSettings,
        lifetimes: Lifetimes,
        limited: Callable[[str], None],
        full: ASGIApp,
        reload: Callable[[], None] = lambda: None,
    ) -> None:
        protocol = functools.partial(LimitedProtocol, limits=limits, limited=limited, full=full)
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("type[asyncio.Protocol]", protocol),
                ws="none",
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                # Labels adds one where the upstream has not.
                date_header=False,
                timeout_keep_alive=cast("int", limits.idle_seconds),
                # Whoever has not gone by then hangs in our own code.
                timeout_graceful_shutdown=int(limits.drain_seconds + 10 * _LAST_WORDS),
            )
        )
        logging.getLogger("uvicorn.error").addFilter(_told_otherwise)
        self._limits = limits
        self._lifetimes = lifetimes
        self._limited = limited
        self._reload = reload

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for each in sockets or []:
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                # Connections inherit it. The system would hold megabytes for each client that reads nothing.
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _IN_KERNEL)
        await super().startup(sockets)

    async def main_loop(self) -> None:
        looking = asyncio.create_task(self._look())
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        try:
            await super().main_loop()
        finally:
            looking.cancel()

    async def _look(self) -> None:
        pause = min(_LOOK_SECONDS, self._limits.header_seconds / 4, self._limits.stalled_seconds / 4)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(pause)
            for connection in self._connections():
                connection.look(loop.time())

    def _connections(self) -> list[LimitedProtocol]:
        return [each for each in self.server_state.connections if isinstance(each, LimitedProtocol)]

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no new requests; those under way get the drain time, then they end with an error, then they are cut off."""
        self._lifetimes.stopping = True
        loop = asyncio.get_running_loop()
        ends = loop.call_later(self._limits.drain_seconds, self._end_requests)
        cuts = loop.call_later(self._limits.drain_seconds + _LAST_WORDS, self._cut_off)
        try:
            await super().shutdown(sockets)
            if self.force_exit:
                await self._stop_at_once()
        finally:
            ends.cancel()
            cuts.cancel()

    async def _stop_at_once(self) -> None:
        """After a second Ctrl-C: whoever is still served is cut off, and the app ends in order all the same."""
        self._cut_off()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=_LAST_WORDS)
        await self.lifespan.shutdown()

    def _end_requests(self) -> None:
        if count := len(self._connections()):
            _log.warning("the drain time is over: %s connections with requests are ended", count)
        self._lifetimes.end_all(ShuttingDown("the proxy is being stopped: send the request again"))

    def _cut_off(self) -> None:
        for connection in self._connections():
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C end the server. Unlike uvicorn's, they are not raised again: an end in order is no failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def _told_otherwise(record: logging.LogRecord) -> bool:
    return not any(noise in str(record.msg) for noise in _NOISE)
