"""HTTP connections to one server through aiohttp, with exceptions of `kvproxy.errors`.

Private attributes of aiohttp are necessary to avoid five bugs: reading some malformed bodies blocks forever; a TCP reset counts
as the end of a body without a length; an error is raised before the bytes that arrived earlier; a connection is reused after a
body shorter than its Content-Length; bytes on an idle connection become the response to the next request.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, RawResponseMessage
from aiohttp.streams import StreamReader
from yarl import URL

from kvproxy.backends.protocol import Body, Callbacks, Headers, RelayedResponse
from kvproxy.errors import InvalidRequest, UpstreamError, UpstreamProtocolError, UpstreamTimeout, UpstreamUnreachable
from kvproxy.optional_packages import require_names
from kvproxy.upstreams.sent_request import SentRequest, UpstreamResponse, encode_head, is_writable

# RFC 9110, section 7.6.1.
_HOP_BY_HOP = frozenset("connection keep-alive te trailer transfer-encoding upgrade http2-settings host expect".split())
_PROXY = "proxy-"
# A body would have no end if a Connection header removed its length.
_ALWAYS_END_TO_END = frozenset(("content-length",))
# Most servers close idle connections after 5 s or more.
_KEEPALIVE_SECONDS = 4.0
OVERRIDDEN = "data_received", "feed_data", "set_response_params"
"""Methods of aiohttp's connections that are overridden."""
USED = "_drain_helper", "closed", "force_close", "read", "read_timeout", "start_timeout"
"""Attributes of aiohttp's connections that are used."""
# RFC 9110, section 9.2.2.
_IDEMPOTENT = ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE")


class ConnectionPool:
    """Connections to one server.

    Args:
        read_timeout: maximum seconds between two chunks of a response.
        limit: maximum connections.
        first_timeout: maximum seconds until its head, and then until its first chunk; by default `read_timeout`.
    """

    def __init__(
        self,
        base: str,
        connect_timeout: float,
        read_timeout: float,
        limit: int,
        first_timeout: float | None = None,
    ) -> None:
        self._base = base
        self.set_timeouts(connect_timeout, read_timeout, first_timeout or read_timeout)
        self._limit = limit
        self._connector: aiohttp.TCPConnector | None = None

    def set_timeouts(self, connect_timeout: float, read_timeout: float, first_timeout: float) -> None:
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._first_timeout = first_timeout
        self._timeout = aiohttp.ClientTimeout(None, sock_connect=connect_timeout)

    def open(self) -> None:
        """Raises SettingsError for a version of aiohttp without the private names that are used."""
        require_names("aiohttp", ResponseHandler, OVERRIDDEN + USED)
        require_names("aiohttp", aiohttp.TCPConnector, ["_factory", "connect"])
        require_names("aiohttp", StreamReader, ["_buffer"])
        self._loop = asyncio.get_running_loop()
        self._connector = aiohttp.TCPConnector(limit=self._limit, keepalive_timeout=_KEEPALIVE_SECONDS)
        self._connector._factory = cast("partial[ResponseHandler]", partial(_StrictConnection, loop=self._loop))
        self._set_server(self._base)

    def _set_server(self, base: str) -> None:
        self._base, url = base, URL(base, encoded=True)
        # Tells the connector the address of the server.
        self._server = aiohttp.ClientRequest("GET", url, loop=self._loop)
        self._host = self._server.headers["host"]
        self._path = url.raw_path.rstrip("/")

    async def close(self) -> None:
        if self._connector is not None:
            await self._connector.close()

    async def request(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: Body,
        on_written: Callable[[], object] | None = None,
    ) -> RelayedResponse:
        """Send a request. Raises UpstreamError; `UpstreamError.unsent` is true if no byte was sent, so a retry is safe.

        `on_written` is called when the headers are written to a connection.
        """
        assert path.startswith("/"), "the path needs a leading slash"
        if not isinstance(body, bytes):
            body = _verify_content_length(body, headers)
        head = encode_head(method, self._path + path, self._host, headers, body)
        # The server may close an idle connection at the moment of its reuse.
        may_repeat = method in _IDEMPOTENT and isinstance(body, bytes)
        while True:
            connection = await self._connect()
            if not is_writable(connection):
                connection.close()
                raise self._unreachable("broke off: the connection was closed", unsent=True)
            request = SentRequest(connection, method, head, body, self._first_timeout)
            if on_written is not None:
                on_written()
            try:
                response = await request.response()
                break
            except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
                # Cycles through tracebacks, also of a variable for the new error, would keep the body in memory.
                _clear_tracebacks(error)
                if isinstance(error, TimeoutError):
                    raise UpstreamTimeout(f"{self._base} did not respond within {self._first_timeout:g} s") from None
                if not may_repeat or not isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError):
                    # Messages about malformed responses have several lines.
                    cause = " ".join(str(error).split()) or type(error).__name__
                    raise self._unreachable(f"broke off: {cause}") from None
                may_repeat = False
        if not 200 <= response.status <= 599:
            response.close()
            raise UpstreamProtocolError(f"the upstream {self._base} answered with the invalid status {response.status}")
        return _to_relayed_response(response, self._base, self._read_timeout)

    async def _connect(self) -> Connection:
        assert self._connector is not None, "call open() first"
        try:
            return await self._connector.connect(self._server, [], self._timeout)
        except (aiohttp.ClientError, OSError) as error:
            _clear_tracebacks(error)
            raise self._connect_error(error) from None

    def _connect_error(self, error: Exception) -> UpstreamError:
        failure: UpstreamError
        if isinstance(error, TimeoutError):
            failure = UpstreamTimeout(f"no connection to {self._base} within {self._connect_timeout:g} s")
        else:
            cause = _cause(error.os_error) if isinstance(error, aiohttp.ClientConnectorError) else str(error)
            failure = UpstreamUnreachable(
                f"cannot reach the upstream {self._base}: is it running, and is --upstream right? ({cause})"
            )
        failure.unsent = True
        return failure

    def _unreachable(self, cause: str, *, unsent: bool = False) -> UpstreamError:
        failure = UpstreamUnreachable(f"the upstream {self._base} {cause}")
        failure.unsent = unsent
        return failure


def _clear_tracebacks(error: BaseException | None) -> None:
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _cause(error: OSError) -> str:
    if isinstance(error, ConnectionError) and error.errno is not None:
        return os.strerror(error.errno)
    return error.strerror or str(error)


def end_to_end_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    """Return the headers with names in lower case, without hop-by-hop headers."""
    kept, connection = list[tuple[str, str]](), list[str]()
    for name, value in headers:
        name = name.lower()
        if name == "connection":
            connection.append(value)
        elif name not in _HOP_BY_HOP and not name.startswith(_PROXY):
            kept.append((name, value))
    if not connection:
        return kept
    named = {option.strip().lower() for option in ",".join(connection).split(",")} - _ALWAYS_END_TO_END
    return [header for header in kept if header[0] not in named]


class _StrictConnection(ResponseHandler):
    _last: StreamReader | None = None

    def set_response_params(self, **params: Any) -> None:
        self._last = None
        super().set_response_params(**params)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        if data[0].code >= 200:
            self._last = data[1]
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        if data and self._last is not None and self._last.is_eof():
            self.force_close()
            if self.transport is not None:
                self.transport.close()
            return
        super().data_received(data)


async def _verify_content_length(body: AsyncIterator[bytes], headers: Headers) -> AsyncIterator[bytes]:
    declared = next((int(value) for name, value in headers if name == "content-length" and value.isdecimal()), None)
    written = 0
    async for chunk in body:
        written += len(chunk)
        if declared is not None and written > declared:
            raise InvalidRequest(f"the body has more than the {declared:,} bytes of its Content-Length")
        yield chunk
    if declared is not None and written < declared:
        raise InvalidRequest(f"the body ended after {written:,} of the {declared:,} bytes of its Content-Length")


def _to_relayed_response(response: UpstreamResponse, server: str, read_timeout: float) -> RelayedResponse:
    raw = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.raw_headers]
    headers = end_to_end_headers(raw)
    if any(name.lower() == "transfer-encoding" for name, _ in raw):
        headers = [(name, value) for name, value in headers if name != "content-length"]

    on_first_chunk, on_end, on_complete, on_broken = Callbacks(), Callbacks(), Callbacks(), Callbacks()
    on_first_chunk.add(partial(response.set_read_timeout, read_timeout))

    async def close() -> None:
        on_end.run()
        # A response that was read to its end has already returned its connection.
        response.close()

    chunks = _chunks(response, server, on_first_chunk, on_end, on_complete, on_broken)
    return RelayedResponse(
        response.status, headers, chunks, close, on_first_chunk, on_end, on_complete=on_complete, on_broken=on_broken
    )


async def _chunks(
    response: UpstreamResponse,
    server: str,
    on_first_chunk: Callbacks,
    on_end: Callbacks,
    on_complete: Callbacks,
    on_broken: Callbacks,
) -> AsyncIterator[bytes]:
    content = response.content
    protocol = response.connection.protocol if response.connection is not None else None
    closed = protocol.closed if protocol is not None else None

    def wake(closed: "asyncio.Future[None]") -> None:
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection was closed"))

    if closed is not None:
        closed.add_done_callback(wake)
    try:
        async for chunk in content.iter_any():
            on_first_chunk.run()
            yield chunk
        if (
            closed is not None
            and closed.done()
            and closed.exception() is not None
            and not _has_message_framing(response)
        ):
            raise UpstreamProtocolError(f"the upstream {server} broke its response off")
        on_complete.run()
    except UpstreamProtocolError:
        on_broken.run()
        raise
    except TimeoutError:
        on_broken.run()
        raise UpstreamProtocolError(f"the upstream {server} stopped sending in the middle of its response") from None
    except (aiohttp.ClientError, OSError, RuntimeError) as error:
        # Forward the bytes before the failure. aiohttp raises RuntimeError for some failures.
        for chunk in list(content._buffer):
            yield chunk
        on_broken.run()
        raise UpstreamProtocolError(f"the upstream {server} broke its response off: {_payload_cause(error)}") from None
    finally:
        on_end.run()
        if closed is not None:
            # Callbacks must not accumulate on the connection.
            closed.remove_done_callback(wake)
            closed.remove_done_callback(_retrieve_exception)
            closed.add_done_callback(_retrieve_exception)
        response.close()


def _payload_cause(error: Exception) -> str:
    # The messages of aiohttp name its own exceptions.
    is_short = isinstance(error, aiohttp.ClientPayloadError) and "not completed" in str(error)
    return "the connection ended before the body did" if is_short else str(error) or type(error).__name__


def _has_message_framing(response: UpstreamResponse) -> bool:
    return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in response.raw_headers)


def _retrieve_exception(closed: "asyncio.Future[None]") -> None:
    if not closed.cancelled():
        closed.exception()
