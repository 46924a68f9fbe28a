"""Any OpenAI-compatible server as a backend: bytes pass through as they are, in both directions."""

import asyncio
import io
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import aiohttp
import orjson
from yarl import URL

from kvproxy.errors import UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable
from kvproxy.proxy.backend import Call, Reply
from kvproxy.proxy.cache_headers import OURS
from kvproxy.settings import UpstreamSettings

# RFC 9110, section 7.6.1: these speak of one connection and end there.
_HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade"
    " host expect".split()
)
# aiohttp adds these where they are missing; an upstream is to see what the client sent.
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_KEYS = ("authorization", "x-api-key", "api-key")
# Servers close idle connections after 5 s and more; a request must not meet one that is being closed.
_KEEPALIVE_SECONDS = 4.0
_LONGEST_HEADER = 64 * 1024
_LARGE_BODY = 2**20
Body = bytes | AsyncIterator[bytes]


class UpstreamBackend:
    """Forwards to a URL.

    Args:
        url: the server, with or without `/v1` at its end.
        settings: timeouts, connections and key.
    """

    def __init__(self, url: str, settings: UpstreamSettings) -> None:
        self._base = url.rstrip("/").removesuffix("/v1")
        self.name = f"upstream:{self._base}"
        self._settings = settings
        self._opened: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        settings = self._settings
        self._opened = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=settings.max_connections, keepalive_timeout=_KEEPALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=settings.connect_timeout, sock_read=settings.read_timeout
            ),
            # Cookies belong to clients: none may be kept here and sent for another one.
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NOT_ADDED,
            auto_decompress=False,
            max_line_size=_LONGEST_HEADER,
            max_field_size=_LONGEST_HEADER,
        )

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def models(self) -> dict[str, Any]:
        """OpenAI's list of models.

        Raises:
            UpstreamUnreachable: the upstream cannot be reached, or answers with something else.
        """
        reply = await self.forward("GET", "/v1/models", {}, b"")
        try:
            models: dict[str, Any] = orjson.loads(b"".join([chunk async for chunk in reply.chunks]))
        except orjson.JSONDecodeError:
            raise UpstreamUnreachable("the upstream answered with something that is no JSON") from None
        return models

    async def send(self, call: Call) -> Reply:
        """Forward a request; returns with the upstream's headers."""
        path = call.dialect.path + (f"?{call.query}" if call.query else "")
        # The flow reads what passes by, so it must not be compressed.
        headers = dict(call.headers) | {"accept-encoding": "identity", "x-request-id": call.request_id}
        if not self._settings.chain:
            headers.pop("cache-control", None)  # It was for this proxy.
        return await self.forward("POST", path, headers, call.raw)

    async def forward(self, method: str, path: str, headers: Mapping[str, str], body: Body) -> Reply:
        """Pass any request through untouched; see `Forwarder`.

        Raises:
            UpstreamUnreachable, UpstreamTimeout: there was no answer.
        """
        sent = _end_to_end(headers.items())
        if not self._settings.chain:
            sent = [(name, value) for name, value in sent if not name.startswith(OURS)]
        if isinstance(body, bytes):
            sent = [(name, value) for name, value in sent if name != "content-length"]
        if self._settings.api_key:
            sent = _with_key(sent, self._settings.api_key, path)
        # A body that comes in parts is used up by the first try.
        tries = 1 + (self._settings.retries if isinstance(body, bytes) else 0)
        while True:
            tries -= 1
            try:
                return _reply(await self._request(method, path, sent, body))
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                # The request never left, so one more try cannot do anything twice.
                if tries == 0:
                    refused = self._no_connection(error)
                    refused.unsent = True
                    raise refused from None
            except TimeoutError:
                raise UpstreamTimeout(f"{self._base} gave no answer in {self._settings.read_timeout:g} s") from None
            except (aiohttp.ClientError, OSError) as error:
                raise UpstreamUnreachable(
                    f"the upstream {self._base} broke off: {error or type(error).__name__}"
                ) from None

    async def _request(
        self, method: str, path: str, headers: list[tuple[str, str]], body: Body
    ) -> aiohttp.ClientResponse:
        assert self._opened is not None, "start() comes first"
        data: Any = body or None
        if isinstance(body, bytes) and len(body) > _LARGE_BODY:
            data = io.BytesIO(body)
        url = URL(self._base + path, encoded=True)
        return await self._opened.request(method, url, headers=headers, data=data, allow_redirects=False)

    def _no_connection(self, error: Exception) -> UpstreamError:
        if isinstance(error, TimeoutError):
            return UpstreamTimeout(f"no connection to {self._base} within {self._settings.connect_timeout:g} s")
        return UpstreamUnreachable(
            f"cannot reach the upstream {self._base}: is it running, and is --upstream right? ({error})"
        )


def _with_key(headers: list[tuple[str, str]], key: str, path: str) -> list[tuple[str, str]]:
    """Headers with a key in place of the client's own, in the header that the client or the API uses."""
    given = [name for name in _KEYS if any(name == header for header, _ in headers)]
    name = given[0] if given else "x-api-key" if path.startswith("/v1/messages") else "authorization"
    kept = [(header, value) for header, value in headers if header not in _KEYS]
    return [*kept, (name, f"Bearer {key}" if name == "authorization" else key)]


def _reply(response: aiohttp.ClientResponse) -> Reply:
    raw = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.raw_headers]
    headers = _end_to_end(raw)
    if any(name.lower() == "transfer-encoding" for name, _ in raw):
        headers = [(name, value) for name, value in headers if name != "content-length"]

    async def close() -> None:
        # An answer that was read to its end has given its connection back; any other connection is of no more use.
        response.close()

    return Reply(response.status, headers, _chunks(response), close=close)


async def _chunks(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    content = response.content
    protocol = response.connection.protocol if response.connection is not None else None
    closed = protocol.closed if protocol is not None else None

    def wake(closed: "asyncio.Future[None]") -> None:
        # aiohttp leaves those who read some malformed bodies waiting for ever.
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection was closed"))

    if closed is not None:
        closed.add_done_callback(wake)
    try:
        async for chunk in content.iter_any():
            yield chunk
        # Where only the end of the connection ends the body, aiohttp takes a reset for a proper end.
        if closed is not None and not _framed(response) and closed.done() and closed.exception() is not None:
            raise UpstreamBroken("the upstream broke its answer off")
    except TimeoutError:
        raise UpstreamBroken("the upstream went silent in the middle of its answer") from None
    except (aiohttp.ClientError, OSError, RuntimeError) as error:
        # aiohttp, which calls some ends a RuntimeError, tells of the end before it hands out what came ahead of it.
        # That is the client's all the same.
        for chunk in list(content._buffer):
            yield chunk
        raise UpstreamBroken(f"the upstream broke its answer off: {error or type(error).__name__}") from None
    finally:
        if closed is not None:
            # The connection lives on for other requests, which are to find no more than this one of it.
            closed.remove_done_callback(wake)
            closed.remove_done_callback(_retrieve)
            closed.add_done_callback(_retrieve)
        response.close()


def _framed(response: aiohttp.ClientResponse) -> bool:
    return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in response.raw_headers)


def _retrieve(closed: "asyncio.Future[None]") -> None:
    """Keeps asyncio from complaining that nobody asked how an idle connection ended."""
    if not closed.cancelled():
        closed.exception()


def _end_to_end(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Headers that are not about one connection, names in lower case."""
    lower = [(name.lower(), value) for name, value in headers]
    named = {each.strip().lower() for name, value in lower if name == "connection" for each in value.split(",")}
    return [(name, value) for name, value in lower if name not in _HOP_BY_HOP and name not in named]
