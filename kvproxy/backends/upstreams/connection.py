"""HTTP to one server through aiohttp: its exceptions become ours here, and only here are its private parts touched.

aiohttp gets three things wrong that a proxy cannot afford. It leaves those who read some malformed bodies waiting for ever;
it takes a reset for a proper end where only the end of the connection ends the body; and it tells of a break before it hands
out what came ahead of it. What is private is `content._buffer` and `connection.protocol.closed`; the tests say when they change.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

import aiohttp
from yarl import URL

from kvproxy.backends.protocol import Body, Headers, Relayed
from kvproxy.errors import UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable

# RFC 9110, section 7.6.1: these speak of one connection and end there.
_HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade"
    " host expect".split()
)
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
        self._opened = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._most, keepalive_timeout=_KEEPALIVE_SECONDS),
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
        data = io.BytesIO(body) if isinstance(body, bytes) and len(body) > _LARGE_BODY else body or None
        url = URL(self._base + path, encoded=True)
        try:
            answer = await self._opened.request(method, url, headers=headers, data=data, allow_redirects=False)
        except (aiohttp.ClientError, OSError) as error:
            known = self._before_answer(error)
            # Its head and a small body are written at once, or not at all.
            known.unsent = known.unsent or (isinstance(data, bytes) and _ended_before(error))
            raise known from None
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
    return [(name, value) for name, value in lower if name not in _HOP_BY_HOP and name not in named]


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
