"""Any OpenAI-compatible server as a backend: bytes pass through as they are, in both directions."""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import httpx
import orjson

from kvproxy.errors import KvproxyError, UpstreamTimeout, UpstreamUnreachable
from kvproxy.proxy.backend import PATHS, Call, Reply
from kvproxy.settings import UpstreamSettings

# RFC 9110, section 7.6.1: these speak of one connection and end there. Lengths are set anew for each hop.
_HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade host"
    " content-length".split()
)


class UpstreamBackend:
    """Forwards to a URL.

    Args:
        url: the server, with or without `/v1` at its end.
        settings: timeouts, connections and key.
        transport: httpx transport, for tests; by default aiohttp's, which is faster under concurrency.
    """

    def __init__(self, url: str, settings: UpstreamSettings, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._base = url.rstrip("/").removesuffix("/v1")
        self.name = f"upstream:{self._base}"
        self._settings = settings
        self._transport = transport
        self._opened: httpx.AsyncClient | None = None

    async def start(self) -> None:
        from httpx_aiohttp import AiohttpTransport

        settings = self._settings
        limits = httpx.Limits(
            max_connections=settings.max_connections, max_keepalive_connections=settings.max_connections
        )
        self._opened = httpx.AsyncClient(
            transport=self._transport or AiohttpTransport(limits=limits),
            timeout=httpx.Timeout(settings.read_timeout, connect=settings.connect_timeout),
            follow_redirects=False,
        )

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.aclose()

    @property
    def _client(self) -> httpx.AsyncClient:
        assert self._opened is not None, "start() comes first"
        return self._opened

    async def models(self) -> dict[str, Any]:
        response = await self._request("GET", "/v1/models", {}, b"")
        models: dict[str, Any] = _parse(await response.aread())
        await response.aclose()
        return models

    async def send(self, call: Call) -> Reply:
        """Forward a request; returns with the upstream's headers."""
        # The flow reads what passes by, so it must not be compressed.
        headers = {name: value for name, value in call.headers.items() if name != "cache-control"}
        response = await self._request(
            "POST",
            PATHS[call.endpoint] + (f"?{call.query}" if call.query else ""),
            headers | {"accept-encoding": "identity"},
            call.raw,
        )
        return _reply(response)

    async def forward(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | AsyncIterator[bytes]
    ) -> Reply:
        """Pass any other request through untouched."""
        return _reply(await self._request(method, path, headers, body))

    async def _request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | AsyncIterator[bytes]
    ) -> httpx.Response:
        sent = _end_to_end(headers.items())
        if self._settings.api_key:
            sent = [(name, value) for name, value in sent if name != "authorization"]
            sent.append(("authorization", f"Bearer {self._settings.api_key}"))
        attempts = 2 if isinstance(body, bytes) else 1
        while True:
            attempts -= 1
            request = self._client.build_request(method, self._base + path, headers=sent, content=body)
            try:
                return await self._client.send(request, stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                # The request never left, so a second try cannot do anything twice.
                if attempts == 0:
                    raise self._no_connection(error) from None
            except httpx.TimeoutException:
                raise UpstreamTimeout(f"{self._base} gave no answer in {self._settings.read_timeout:g} s") from None
            except httpx.HTTPError as error:
                raise UpstreamUnreachable(
                    f"the upstream {self._base} broke off: {error or type(error).__name__}"
                ) from None

    def _no_connection(self, error: httpx.TransportError) -> KvproxyError:
        # The aiohttp transport also calls a refused connection a timeout; its cause tells them apart.
        if isinstance(error, httpx.ConnectTimeout) and isinstance(error.__cause__, TimeoutError):
            return UpstreamTimeout(f"no connection to {self._base} within {self._settings.connect_timeout:g} s")
        return UpstreamUnreachable(
            f"cannot reach the upstream {self._base}: is it running, and is --upstream right? ({error})"
        )


def _reply(response: httpx.Response) -> Reply:
    headers = [(name, value) for name, value in _end_to_end(response.headers.multi_items()) if name != "cache-status"]
    return Reply(response.status_code, headers, _chunks(response), close=response.aclose)


async def _chunks(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except httpx.TimeoutException:
        raise UpstreamTimeout("the upstream went silent in the middle of its answer") from None
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise UpstreamUnreachable(f"the upstream broke its answer off: {error or type(error).__name__}") from None
    finally:
        await response.aclose()


def _end_to_end(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in headers if name.lower() not in _HOP_BY_HOP]


def _parse(data: bytes) -> Any:
    """JSON from an upstream, or UpstreamUnreachable where it is none."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise UpstreamUnreachable("the upstream answered with something that is no JSON") from None
