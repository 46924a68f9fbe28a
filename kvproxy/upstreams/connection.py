"""HTTP to one server through aiohttp. Its exceptions become ours here, and only here are its private parts touched.

A connection is reused only if the request on it was written to its declared end and the response was read to its end.

aiohttp has five faults that a proxy cannot afford. It blocks readers of some malformed bodies for ever; it takes a reset for a
proper end if only the end of the connection ends the body; it reports a break before it hands out the bytes that came ahead of
it; it reuses a connection after a body that was shorter than its Content-Length; and it gives bytes that arrive on an idle
connection to the next request. The private parts are `content._buffer`, `connection.protocol.closed`, and
`connector._factory`; the tests fail if they change.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader
from yarl import URL

from kvproxy.backends.protocol import Body, Headers, Relayed
from kvproxy.errors import InvalidRequest, UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable

# RFC 9110, section 7.6.1: these speak of one connection and end there.
_HOP_BY_HOP = frozenset("connection keep-alive te trailer transfer-encoding upgrade http2-settings host expect".split())
_PROXY = "proxy-"
# A Connection header may not name these: without its length, a body would have no end.
_NEVER_HOP_BY_HOP = frozenset(("content-length",))
# aiohttp adds these where they are missing; an upstream is to see what the client sent.
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
# Servers close idle connections after 5 s and more; a request must not meet one that is being closed.
_KEEPALIVE_SECONDS = 4.0
_CLOSING = "closing transport"  # What aiohttp says of a write that was not begun.
_LONGEST_HEADER = 64 * 1024
_LARGE_BODY = 2**20


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait for a connection, and between two parts of an answer."""

    connect: float
    read: float


class Connection:
    """Connections to one server.

    Args:
        base: its URL, without a path.
        timeouts: how long to wait.
        most: open connections.
    """

    def __init__(self, base: str, timeouts: Timeouts, most: int) -> None:
        self._base = base
        self._timeouts = timeouts
        self._most = most
        self._opened: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Get ready; called on the event loop."""
        connector = aiohttp.TCPConnector(limit=self._most, keepalive_timeout=_KEEPALIVE_SECONDS)
        connector._factory = cast("partial[ResponseHandler]", partial(_OneResponse, loop=asyncio.get_running_loop()))
        self._opened = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._timeouts.connect, sock_read=self._timeouts.read
            ),
            # Cookies belong to clients: none may be kept here and sent for another one.
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NOT_ADDED,
            auto_decompress=False,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )

    async def close(self) -> None:
        """Release the connections."""
        if self._opened is not None:
            await self._opened.close()

    async def request(self, method: str, path: str, headers: Headers, body: Body) -> Relayed:
        """Send a request; returns with the answer's head.

        Args:
            path: with its leading slash, and the query.
            headers: as they are to arrive.

        Raises:
            UpstreamError: there was no answer; `unsent` tells that the request never left.
        """
        assert self._opened is not None, "open() comes first"
        assert path.startswith("/"), "a path without a slash would name another host"
        data: bytes | io.BytesIO | AsyncIterator[bytes] | None
        if isinstance(body, bytes):
            data = io.BytesIO(body) if len(body) > _LARGE_BODY else body or None
        else:
            data = _of_declared_length(body, headers)
        url = URL(self._base + path, encoded=True)
        try:
            answer = await self._opened.request(method, url, headers=headers, data=data, allow_redirects=False)
        except (aiohttp.ClientError, OSError) as error:
            known = self._before_answer(error)
            # Its head and a small body are written at once, or not at all.
            known.unsent = known.unsent or (isinstance(data, bytes) and _ended_before(error))
            raise known from None
        if not 200 <= answer.status <= 599:
            answer.close()
            raise UpstreamBroken(
                f"the upstream {self._base} answered with the status {answer.status}, which is not valid"
            )
        return _relayed(answer)

    def _before_answer(self, error: Exception) -> UpstreamError:
        """Our error for one of aiohttp's that came before an answer."""
        known: UpstreamError
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            known = UpstreamTimeout(f"no connection to {self._base} within {self._timeouts.connect:g} s")
            known.unsent = True
        elif isinstance(error, aiohttp.ClientConnectorError):
            known = UpstreamUnreachable(
                f"cannot reach the upstream {self._base}: is it running, and is --upstream right? ({error})"
            )
            known.unsent = True
        elif isinstance(error, TimeoutError):
            known = UpstreamTimeout(f"{self._base} gave no answer in {self._timeouts.read:g} s")
        else:
            known = UpstreamUnreachable(f"the upstream {self._base} broke off: {error or type(error).__name__}")
        return known


def _ended_before(error: Exception) -> bool:
    """Whether the server closed an idle connection just as it was taken, so that nothing was written to it."""
    return isinstance(error.__cause__, aiohttp.ClientConnectionResetError) and _CLOSING in str(error.__cause__)


def end_to_end(headers: Iterable[tuple[str, str]]) -> Headers:
    """Headers that are not about one connection, names in lower case."""
    lower = [(name.lower(), value) for name, value in headers]
    named = {each.strip().lower() for name, value in lower if name == "connection" for each in value.split(",")}
    dropped = _HOP_BY_HOP | (named - _NEVER_HOP_BY_HOP)
    return [(name, value) for name, value in lower if name not in dropped and not name.startswith(_PROXY)]


class _OneResponse(ResponseHandler):
    """aiohttp's connection, closed by any byte after the end of a response: no later request may take it for its response."""

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


async def _of_declared_length(body: AsyncIterator[bytes], headers: Headers) -> AsyncIterator[bytes]:
    """The parts of a body; fails if they are shorter or longer than its Content-Length, so that the connection closes."""
    declared = next((int(value) for name, value in headers if name == "content-length" and value.isdecimal()), None)
    written = 0
    async for part in body:
        written += len(part)
        if declared is not None and written > declared:
            raise InvalidRequest(f"the body has more than the {declared:,} bytes of its Content-Length")
        yield part
    if declared is not None and written < declared:
        raise InvalidRequest(f"the body ended after {written:,} of the {declared:,} bytes of its Content-Length")


def _relayed(answer: aiohttp.ClientResponse) -> Relayed:
    raw = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.raw_headers]
    headers = end_to_end(raw)
    if any(name.lower() == "transfer-encoding" for name, _ in raw):
        headers = [(name, value) for name, value in headers if name != "content-length"]

    begun: list[Callable[[], None]] = []
    over: list[Callable[[], None]] = []

    async def close() -> None:
        _call(over)
        # An answer that was read to its end has given its connection back; any other connection is of no more use.
        answer.close()

    return Relayed(answer.status, headers, _chunks(answer, begun, over), close, begun, over)


def _call(hooks: list[Callable[[], None]]) -> None:
    """Call each once."""
    while hooks:
        hooks.pop()()


async def _chunks(
    answer: aiohttp.ClientResponse, begun: list[Callable[[], None]], over: list[Callable[[], None]]
) -> AsyncIterator[bytes]:
    content = answer.content
    protocol = answer.connection.protocol if answer.connection is not None else None
    closed = protocol.closed if protocol is not None else None

    def wake(closed: "asyncio.Future[None]") -> None:
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection was closed"))

    if closed is not None:
        closed.add_done_callback(wake)
    try:
        async for chunk in content.iter_any():
            if begun:
                _call(begun)
            yield chunk
        if closed is not None and not _framed(answer) and closed.done() and closed.exception() is not None:
            raise UpstreamBroken("the upstream broke its answer off")
    except TimeoutError:
        raise UpstreamBroken("the upstream went silent in the middle of its answer") from None
    except (aiohttp.ClientError, OSError, RuntimeError) as error:
        # Send the client what already arrived, then report the error. aiohttp calls some ends a RuntimeError.
        for chunk in list(content._buffer):
            yield chunk
        raise UpstreamBroken(f"the upstream broke its answer off: {error or type(error).__name__}") from None
    finally:
        _call(over)
        if closed is not None:
            # The connection lives on for other requests, which must find no more than this one callback of it.
            closed.remove_done_callback(wake)
            closed.remove_done_callback(_retrieve)
            closed.add_done_callback(_retrieve)
        answer.close()


def _framed(answer: aiohttp.ClientResponse) -> bool:
    return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in answer.raw_headers)


def _retrieve(closed: "asyncio.Future[None]") -> None:
    """Keeps asyncio from complaining that nobody asked how an idle connection ended."""
    if not closed.cancelled():
        closed.exception()
