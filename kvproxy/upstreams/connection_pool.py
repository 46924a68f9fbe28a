"""HTTP connections to one server through aiohttp, with exceptions of `kvproxy.errors`.

Private attributes of aiohttp are necessary to avoid five bugs: reading some malformed bodies blocks forever; a TCP reset counts
as the end of a body without a length; an error is raised before the bytes that arrived earlier; a connection is reused after a
body shorter than its Content-Length; bytes on an idle connection become the response to the next request.
"""

import asyncio
import io
import os
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader
from yarl import URL

from kvproxy.backends.protocol import Body, Callbacks, Headers, RelayedResponse
from kvproxy.errors import InvalidRequest, UpstreamError, UpstreamProtocolError, UpstreamTimeout, UpstreamUnreachable
from kvproxy.optional_packages import require_names

# RFC 9110, section 7.6.1.
_HOP_BY_HOP = frozenset("connection keep-alive te trailer transfer-encoding upgrade http2-settings host expect".split())
_PROXY = "proxy-"
# A body would have no end if a Connection header removed its length.
_ALWAYS_END_TO_END = frozenset(("content-length",))
# Defaults of aiohttp that the client did not send.
_SKIPPED_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
# Most servers close idle connections after 5 s or more.
_KEEPALIVE_SECONDS = 4.0
_CLOSING = "closing transport"  # aiohttp's message for a write that did not start.
OVERRIDDEN = "data_received", "feed_data", "set_response_params"
"""Methods of aiohttp's connections that are overridden."""
_MAX_HEADER_BYTES = 64 * 1024
_LARGE_BODY = 2**20


class ConnectionPool:
    """Connections to one server. `read_timeout` limits the seconds between two chunks of a response."""

    def __init__(self, base: str, connect_timeout: float, read_timeout: float, limit: int) -> None:
        self._base = base
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._limit = limit
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Raises SettingsError for a version of aiohttp without the private names that are used."""
        require_names("aiohttp", ResponseHandler, (*OVERRIDDEN, "closed", "force_close"))
        require_names("aiohttp", aiohttp.TCPConnector, ["_factory"])
        require_names("aiohttp", StreamReader, ["_buffer"])
        connector = aiohttp.TCPConnector(limit=self._limit, keepalive_timeout=_KEEPALIVE_SECONDS)
        connector._factory = cast(
            "partial[ResponseHandler]", partial(_StrictConnection, loop=asyncio.get_running_loop())
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(None, sock_connect=self._connect_timeout, sock_read=self._read_timeout),
            # Cookies belong to one client.
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_SKIPPED_HEADERS,
            auto_decompress=False,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
            trace_configs=[_trace_written_requests()],
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

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
        assert self._session is not None, "call open() first"
        assert path.startswith("/"), "the path needs a leading slash"
        data: bytes | io.BytesIO | AsyncIterator[bytes] | None
        if isinstance(body, bytes):
            data = io.BytesIO(body) if len(body) > _LARGE_BODY else body or None
        else:
            data = _verify_content_length(body, headers)
        url = URL(self._base + path, encoded=True)
        try:
            response = await self._session.request(
                method, url, headers=headers, data=data, allow_redirects=False, trace_request_ctx=on_written
            )
        except (aiohttp.ClientError, OSError) as error:
            # Cycles through tracebacks, also of a variable for the new error, would keep the body in memory.
            _clear_tracebacks(error)
            raise self._request_error(error, is_small=isinstance(data, bytes)) from None
        if not 200 <= response.status <= 599:
            response.close()
            raise UpstreamProtocolError(f"the upstream {self._base} answered with the invalid status {response.status}")
        return _to_relayed_response(response, self._base)

    def _request_error(self, error: Exception, *, is_small: bool) -> UpstreamError:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            failure: UpstreamError = UpstreamTimeout(
                f"no connection to {self._base} within {self._connect_timeout:g} s"
            )
        elif isinstance(error, aiohttp.ClientConnectorError):
            failure = UpstreamUnreachable(
                f"cannot reach the upstream {self._base}: is it running, and is --upstream right? ({_cause(error.os_error)})"
            )
        elif isinstance(error, TimeoutError):
            return UpstreamTimeout(f"{self._base} did not respond within {self._read_timeout:g} s")
        else:
            failure = UpstreamUnreachable(f"the upstream {self._base} broke off: {error or type(error).__name__}")
            cause = error.__cause__
            # The head and a small body are written in one call.
            failure.unsent = (
                is_small and isinstance(cause, aiohttp.ClientConnectionResetError) and _CLOSING in str(cause)
            )
            return failure
        failure.unsent = True
        return failure


def _trace_written_requests() -> aiohttp.TraceConfig:
    async def call(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx()

    trace = aiohttp.TraceConfig()
    trace.on_request_headers_sent.append(call)
    return trace


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
    lower = [(name.lower(), value) for name, value in headers]
    dropped = _HOP_BY_HOP
    if connection := [value for name, value in lower if name == "connection"]:
        named = {option.strip().lower() for option in ",".join(connection).split(",")}
        dropped = dropped | (named - _ALWAYS_END_TO_END)
    return [(name, value) for name, value in lower if name not in dropped and not name.startswith(_PROXY)]


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


def _to_relayed_response(response: aiohttp.ClientResponse, server: str) -> RelayedResponse:
    raw = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.raw_headers]
    headers = end_to_end_headers(raw)
    if "transfer-encoding" in response.headers:
        headers = [(name, value) for name, value in headers if name != "content-length"]

    on_first_chunk, on_end, on_complete, on_broken = Callbacks(), Callbacks(), Callbacks(), Callbacks()

    async def close() -> None:
        on_end.run()
        # A response that was read to its end has already returned its connection.
        response.close()

    chunks = _chunks(response, server, on_first_chunk, on_end, on_complete, on_broken)
    return RelayedResponse(
        response.status, headers, chunks, close, on_first_chunk, on_end, on_complete=on_complete, on_broken=on_broken
    )


async def _chunks(
    response: aiohttp.ClientResponse,
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
        raise UpstreamProtocolError(
            f"the upstream {server} broke its response off: {error or type(error).__name__}"
        ) from None
    finally:
        on_end.run()
        if closed is not None:
            # Callbacks must not accumulate on the connection.
            closed.remove_done_callback(wake)
            closed.remove_done_callback(_retrieve_exception)
            closed.add_done_callback(_retrieve_exception)
        response.close()


def _has_message_framing(response: aiohttp.ClientResponse) -> bool:
    return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in response.raw_headers)


def _retrieve_exception(closed: "asyncio.Future[None]") -> None:
    if not closed.cancelled():
        closed.exception()
