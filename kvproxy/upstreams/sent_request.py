"""One request over one of aiohttp's connections, and its response.

aiohttp's session would take three times as many instructions: it prepares redirects, cookies, authentication, and traces.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.streams import StreamReader

from kvproxy.backends.protocol import Body, Headers
from kvproxy.errors import InvalidRequest

_MAX_HEADER_BYTES = 64 * 1024
_LARGE_BODY = 2**20
_STEP = 2**18
_CONTROLS_WITHOUT_TAB = re.compile("[\x00-\x08\x0a-\x1f\x7f]")
# RFC 9110, section 8.6: requests with other methods have a Content-Length, also of 0.
_WITHOUT_BODY = ("GET", "HEAD", "OPTIONS", "TRACE")


def encode_head(method: str, target: str, host: str, headers: Headers, body: Body) -> bytes:
    """Encode the request line and the headers, with the length of the body. Raises InvalidRequest for control characters."""
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}", *[f"{name}: {value}" for name, value in headers]]
    if not isinstance(body, bytes):
        if not any(name == "content-length" for name, _ in headers):
            lines.append("transfer-encoding: chunked")
    elif body or method not in _WITHOUT_BODY:
        lines.append(f"content-length: {len(body)}")
    text = "".join(lines)
    # The expression takes several times as long.
    if not text.isprintable() and _CONTROLS_WITHOUT_TAB.search(text):
        raise InvalidRequest("the path or a header holds a control character")
    head = "\r\n".join([*lines, "", ""])
    try:
        # The headers of clients were decoded as latin-1, so this restores their bytes.
        return head.encode("latin-1")
    except UnicodeEncodeError:
        # A key of the settings may have other characters.
        return head.encode()


@dataclass(slots=True, eq=False)
class UpstreamResponse:
    """A response whose head has arrived.

    Attributes:
        connection: None after the end of the response.
        upload: sends the rest of the request; None if the request was sent at once.
    """

    status: int
    raw_headers: tuple[tuple[bytes, bytes], ...]
    content: StreamReader
    connection: Connection | None
    upload: "asyncio.Task[None] | None"

    def set_read_timeout(self, seconds: float) -> None:
        """Set the maximum seconds between the next chunks, unless the response has ended."""
        protocol = None if self.connection is None else self.connection.protocol
        if protocol is not None and protocol.read_timeout != seconds:
            protocol.read_timeout = seconds
            protocol.start_timeout()

    def end(self) -> None:
        """Return the connection to the pool. Close it if the request was not sent to its end."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        if self.upload is None or self.upload.done():
            connection.release()
        else:
            self.upload.cancel()
            connection.close()

    def close(self) -> None:
        """Close the connection, unless the response has ended."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        if self.content.exception() is None:
            self.content.set_exception(aiohttp.ClientConnectionError("the response was closed"))
        if self.upload is not None:
            self.upload.cancel()
        connection.close()


class SentRequest:
    """Sends a request over a connection, which is closed if the request or its response fails.

    Args:
        head: see `encode_head`.
        read_timeout: maximum seconds until the head of the response, and between two chunks.
    """

    def __init__(self, connection: Connection, method: str, head: bytes, body: Body, read_timeout: float) -> None:
        assert connection.protocol is not None
        self._connection = connection
        self._protocol = protocol = connection.protocol
        self._upload: asyncio.Task[None] | None = None
        protocol.set_response_params(
            skip_payload=method == "HEAD",
            read_until_eof=True,
            auto_decompress=False,
            read_timeout=read_timeout,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
        )
        assert protocol.transport is not None
        if isinstance(body, bytes) and len(body) <= _LARGE_BODY:
            # One write is one packet.
            protocol.transport.write(head + body)
            protocol.start_timeout()
            return
        protocol.transport.write(head)
        is_chunked = not isinstance(body, bytes) and b"\r\ntransfer-encoding: chunked\r\n" in head
        chunks = _slices(body) if isinstance(body, bytes) else body
        self._upload = asyncio.create_task(self._write(chunks, is_chunked=is_chunked))

    async def response(self) -> UpstreamResponse:
        """Return the response, without informational ones. Raises aiohttp.ClientError, or OSError."""
        try:
            message, content = await self._protocol.read()
            while 100 <= message.code < 200 and message.code != 101:
                message, content = await self._protocol.read()
        except BaseException:
            if self._upload is not None:
                self._upload.cancel()
            self._connection.close()
            raise
        response = UpstreamResponse(message.code, message.raw_headers, content, self._connection, self._upload)
        if message.code != 101:
            content.on_eof(response.end)
        return response

    async def _write(self, chunks: AsyncIterator[bytes], *, is_chunked: bool) -> None:
        try:
            async for chunk in chunks:
                if chunk:
                    await _write_and_drain(
                        self._protocol, b"%x\r\n%b\r\n" % (len(chunk), chunk) if is_chunked else chunk
                    )
            if is_chunked:
                await _write_and_drain(self._protocol, b"0\r\n\r\n")
            self._protocol.start_timeout()
        except asyncio.CancelledError:
            self._connection.close()
            raise
        except Exception as error:
            # `response` raises it.
            failure = aiohttp.ClientConnectionError(f"the request could not be sent: {error or type(error).__name__}")
            self._protocol.set_exception(failure, error)


def is_writable(connection: Connection) -> bool:
    """Whether the connection is open, as far as the proxy knows."""
    transport = connection.transport
    return transport is not None and not transport.is_closing()


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _STEP):
        yield body[start : start + _STEP]


async def _write_and_drain(protocol: ResponseHandler, data: bytes) -> None:
    if protocol.transport is None or protocol.transport.is_closing():
        raise ConnectionResetError("the connection was closed")
    protocol.transport.write(data)
    await protocol._drain_helper()
