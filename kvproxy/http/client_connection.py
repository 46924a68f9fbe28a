"""uvicorn's HTTP protocol with limits for slow or large headers, and for clients that do not read their responses.

`ProxyServer` periodically calls `close_if_too_slow` of all connections, so that a connection requires no timer.
"""

import asyncio
import fcntl
import termios
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from kvproxy.apis.json import dumps
from kvproxy.backends.overload_log import overloaded
from kvproxy.errors import HeadersTooLarge, InvalidRequest, KvproxyError, Overloaded, RequestTooSlow
from kvproxy.http import request_heads
from kvproxy.http.deadlines_and_disconnects import BODILESS
from kvproxy.http.error_responses import error_body, error_headers, error_response
from kvproxy.settings.limits import LimitSettings

MAX_PIPELINED = 32
"""Maximum pipelined requests that wait for the response in progress on a connection."""
OVERRIDDEN = (
    *("_start_asgi_task", "connection_lost", "connection_made", "data_received", "on_body", "on_header"),
    *("on_headers_complete", "on_message_begin", "on_message_complete", "on_response_complete", "resume_writing"),
)
"""Methods of uvicorn's protocol that `LimitedProtocol` overrides."""
USED = "connections", "cycle", "flow", "headers", "loop", "pipeline", "server_state", "transport"
"""Attributes of uvicorn's protocol that `LimitedProtocol` uses."""
USED_OF_CYCLES = (
    *("chunked_encoding", "disconnected", "expected_content_length", "keep_alive", "message_event", "more_body"),
    *("on_response", "response_complete", "response_started", "waiting_for_100_continue"),
)
"""Attributes of uvicorn's requests that `LimitedProtocol` reads or sets."""
_MAX_REFUSED = 256
"""Maximum connections beyond `limits.connections` that receive an error response; further ones are closed immediately."""
_NO_CONTENT = 204
_LINGER_SECONDS = 2.0


class _ResponseTransport:
    """Writes the head of a response together with its body, and lingers after the last write if `linger` is set.

    Two writes would be two packets, and would wake the client twice. The head waits until the body of the same turn of the event
    loop, at most until the next turn. A lingering connection continues to read for two seconds: closing a socket with unread
    input resets the connection, and the client could lose the response.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self._holds_next = False
        self._ended = False
        self.linger = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def hold_next_write(self) -> None:
        """Delay the next write until the following one, or until the next turn of the event loop."""
        self._holds_next = True

    def write(self, data: bytes) -> None:
        if self._ended:
            return
        if self._holds_next:
            self._flush()
            self._holds_next, self._head = False, data
            asyncio.get_running_loop().call_soon(self._flush)
        elif self._head is not None:
            head, self._head = self._head, None
            self._transport.writelines((head, data))
        else:
            self._transport.write(data)

    def _flush(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head)

    def is_closing(self) -> bool:
        return self._ended or self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        if not self.linger or not self._transport.can_write_eof() or self._transport.is_closing():
            self._transport.close()
        elif not self._ended:
            self._ended = True
            self._transport.write_eof()
            self._transport.resume_reading()
            asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._transport.close)


class LimitedProtocol(HttpToolsProtocol):
    """A client's connection with limits on headers and on slow clients (`LimitSettings`).

    The app `refuse` answers requests on connections beyond `limits.connections`.
    """

    def __init__(
        self, *args: Any, limits: LimitSettings, on_limit: Callable[[str], None], refuse: ASGIApp, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._refuse_app = refuse
        self._limits = limits
        self._on_limit = on_limit
        self._in_head = False
        self._head_since: float | None = None
        self._idle_since: float | None = None
        self._steps = 0  # Heads begun and ended, and parts of bodies.
        self._raw = 0  # Bytes since the last step.
        self._refusal: KvproxyError | None = None
        self._unread_bytes = 0
        """Bytes that the client had not read at the time `_unread_since`."""
        self._unread_since = 0.0
        self._offered_upgrade = False
        self._ignores_input = False
        self._running: RequestResponseCycle | None = None
        self._is_ending = False

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._responses = _ResponseTransport(transport)
        super().connection_made(cast("asyncio.Transport", self._responses))
        self._head_since = self.loop.time()
        if len(self.connections) > self._limits.connections:
            self._on_limit("connections")
            self.app = self._refuse_app
            if len(self.connections) > self._limits.connections + _MAX_REFUSED:
                self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._ignores_input or self.transport.is_closing():
            # A closing connection discards what still arrives.
            return
        steps = self._steps
        self._idle_since = None
        self._feed_parser(data)
        if self.transport.is_closing():
            return
        if self._in_head or not self._is_answering:
            # Also for bytes that begin no request: they ended the idle time.
            self._head_since = self._head_since or self.loop.time()
        # The parser buffers incomplete headers, trailers, and chunk sizes.
        self._raw = self._raw + len(data) if steps == self._steps else 0
        if self._raw > self._limits.header_bytes:
            self._refuse(self._headers_too_large())

    def _feed_parser(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                try:
                    self.parser.feed_data(rest)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    rest = rest[upgrade.args[0] :]
                    self._ignore_upgrade()
        except httptools.HttpParserError:
            # The traceback of a refusal would keep the received bytes in memory.
            self._refuse((self._refusal or InvalidRequest("this is no request of HTTP/1.1")).with_traceback(None))

    def _ignore_upgrade(self) -> None:
        head = request_heads.head_without_upgrade(
            self.parser.get_method(), self.parser.get_http_version(), self.url, self.headers
        )
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(head)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._offered_upgrade = False
        self._steps += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers must not become headers. The parser leaves white space after a value, which is no part of it (RFC 9110, 5.5).
        if self._in_head:
            super().on_header(name, value.rstrip(b" \t"))

    def on_message_complete(self) -> None:
        if self._offered_upgrade:
            return
        self.cycle.waiting_for_100_continue = False
        super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._steps += 1
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._in_head, self._head_since = False, None
        self._steps += 1
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self._limits.header_bytes:
            self._refusal = self._headers_too_large()
        elif len(self.headers) > self._limits.headers:
            message = f"more than {self._limits.headers} headers: see the setting limits.headers"
            self._refusal = HeadersTooLarge(message, limit="headers")
        elif len(self.pipeline) >= MAX_PIPELINED:
            self._refusal = Overloaded(f"more than {MAX_PIPELINED} requests wait on this connection")
        else:
            method, version = self.parser.get_method(), self.parser.get_http_version()
            self._refusal = request_heads.head_error(method, version, self.url, self.headers)
        if self._refusal is not None:
            # Ends the parsing.
            raise self._refusal
        self._offered_upgrade = self.parser.should_upgrade()
        if not self._offered_upgrade:
            # RFC 9110 (10.1.1): ignore the expectation of an HTTP/1.0 client.
            self.expect_100_continue = self.expect_100_continue and self.parser.get_http_version() != "1.0"
            super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        self._running = cycle
        cycle.keep_alive = cycle.keep_alive and not self._is_ending
        super()._start_asgi_task(cycle, partial(_fix_framing, app, cycle, self._responses))

    def _headers_too_large(self) -> HeadersTooLarge:
        most = self._limits.header_bytes
        return HeadersTooLarge(f"URL and headers have more than {most:,} bytes: see the setting limits.header_bytes")

    def _refuse(self, error: KvproxyError) -> None:
        if error.limit is not None:
            self._on_limit(error.limit)
        running = self._running
        if running is not None and not running.response_complete:
            if not running.more_body:
                # The error is in a successor of the request in progress.
                self._refuse_after_received_requests(running, error)
                return
            if running.response_started:
                # The client would read the error as a part of the response in progress.
                self.transport.abort()
                return
            running.disconnected = True
            running.message_event.set()
        self._end_with(error)

    def _end_with(self, error: KvproxyError) -> None:
        if self.transport.is_closing():
            return
        body = dumps(error_body(error, self.url.partition(b"?")[0].decode("latin-1")))
        headers = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
        headers += b"".join(f"{name}: {value}\r\n".encode() for name, value in error_headers(error).items()) + b"\r\n"
        self.transport.write(STATUS_LINE[error.status] + headers + body)
        self._responses.linger = True
        self.transport.close()

    def _refuse_after_received_requests(self, running: RequestResponseCycle, error: KvproxyError) -> None:
        self._ignores_input = True
        if self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()
        last = self.pipeline[0][0] if self.pipeline else running
        # The client may have the whole response already, and wait for the next one.
        last.on_response = partial(self._end_with, error)
        self._responses.linger = True

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn notifies the last request only, which may be a successor.
        self.pipeline.clear()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def _on_timeout(self) -> None:
        if not self._in_head:
            self._on_limit("header_seconds")
            self.transport.close()
            return
        seconds = self._limits.header_seconds
        message = f"the headers did not arrive within {seconds:g} s: see the setting limits.header_seconds"
        self._refuse(RequestTooSlow(message, limit="header_seconds"))

    def end_after_response(self) -> None:
        """Announce in the response in progress, or in the next one, that the connection closes after it."""
        self._is_ending = True
        if self._running is not None:
            self._running.keep_alive = False

    def was_used_after(self, time: float) -> bool:
        """Whether the connection waits for a request since a moment after `time`, so that a client may be sending one."""
        waits_since = self._idle_since or self._head_since
        return waits_since is not None and waits_since > time and not self.transport.is_closing()

    def on_response_complete(self) -> None:
        # uvicorn would start a timer for each response.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, cast("ASGIApp", app))
        else:
            self._idle_since = self.loop.time()

    def resume_writing(self) -> None:
        self._unread_bytes = 0
        super().resume_writing()

    def close_if_too_slow(self, now: float) -> None:
        """`now` is the event loop's time."""
        late = self._head_since is not None and now - self._head_since > self._limits.header_seconds
        if late and not self.transport.is_closing():
            self._head_since = None
            self._on_timeout()
        if self._idle_since is not None and now - self._idle_since > self._limits.idle_seconds:
            self._idle_since = None
            self._on_limit("idle_seconds")
            self.transport.close()
        # Writing is paused, so the buffer can only shrink.
        still = self.flow.write_paused or not self._is_answering or self.transport.is_closing()
        unsent = self.transport.get_write_buffer_size() if still else 0
        waiting = unsent + self._unsent_bytes_in_kernel() if unsent else 0
        if not self._unread_bytes or waiting < self._unread_bytes:
            self._unread_bytes, self._unread_since = waiting, now
        elif now - self._unread_since > self._limits.stalled_seconds:
            self._on_limit("stalled_seconds")
            self.transport.abort()

    def _unsent_bytes_in_kernel(self) -> int:
        held = array("i", [0])
        try:
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, held)
        except OSError:
            # The socket is closed, or the system does not support this.
            return 0
        return held[0]


async def _fix_framing(
    app: ASGIApp,
    cycle: RequestResponseCycle,
    transport: _ResponseTransport,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    unframed = bodiless = False

    async def framed(message: Message) -> None:
        nonlocal unframed, bodiless
        if message["type"] == "http.response.start":
            if cycle.more_body:
                cycle.keep_alive = False
                transport.linger = True
            headers = message["headers"]
            bodiless = message["status"] in BODILESS
            if message["status"] == _NO_CONTENT:
                # RFC 9110 (8.6) forbids a length there.
                headers = [header for header in headers if header[0] != b"content-length"]
                message = {**message, "headers": headers}
            unframed = scope["http_version"] == "1.0" and all(name != b"content-length" for name, _ in headers)
            if unframed:
                cycle.chunked_encoding = False
            transport.hold_next_write()
        elif bodiless:
            message = {**message, "body": b""}
            cycle.expected_content_length = 0
        elif unframed:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, framed)


async def refuse_connection(scope: Scope, receive: Receive, send: Send) -> None:
    response = error_response(overloaded(), scope)
    response.headers["connection"] = "close"
    await response(scope, receive, send)
