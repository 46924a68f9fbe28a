"""Creates the exchange of each request, and adds its headers to the response."""

from collections.abc import Callable, Mapping
from email.utils import formatdate
from functools import lru_cache
from os import urandom
from time import time

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvproxy.apis import PATHS, is_messages_path
from kvproxy.apis.trace_context import TRACE_HEADER
from kvproxy.exchange import Exchange
from kvproxy.flow.tenants import Tenants

_EXCHANGE = "exchange"
_OWN_PATHS = ("/health", "/ready", "/metrics", "/admin", "/ui")
_OWN_ID = b"x-kvproxy-request-id"
_TRACE_HEADER = TRACE_HEADER.encode()


def exchange_of(scope: Scope) -> Exchange:
    exchange: Exchange = scope["state"][_EXCHANGE]
    return exchange


def request_id_of(scope: Scope) -> str | None:
    exchange: Exchange | None = scope.get("state", {}).get(_EXCHANGE)
    return None if exchange is None else exchange.request_id


def is_proxy_path(path: str) -> bool:
    """Whether a path belongs to the proxy itself: it needs no key, and is never forwarded or logged."""
    return path in _OWN_PATHS or path.startswith(("/admin/", "/ui/"))


def request_id_in(headers: Mapping[bytes, bytes]) -> str:
    """Return the request id of the client, or a new one."""
    return headers.get(b"x-request-id", b"").decode("latin-1") or urandom(16).hex()


def id_headers(path: str, request_id: bytes) -> dict[bytes, bytes]:
    """Return the headers that each response has: its request id and date."""
    headers = {b"x-request-id": request_id, b"date": _http_date(int(time()))}
    if is_messages_path(path):
        # Anthropic's SDKs read this header.
        headers[b"request-id"] = request_id
    return headers


@lru_cache(maxsize=1)
def _http_date(seconds: int) -> bytes:
    return formatdate(seconds, usegmt=True).encode()


class ExchangeMiddleware:
    """ASGI middleware that creates an `Exchange` per request, and adds `X-Request-Id` and a missing `Date` to responses.

    The request id is the client's, or new. Responses of the Messages API have it as `Request-Id`, too. If the upstream sets
    another `X-Request-Id`, the request id is sent as `X-KVProxy-Request-Id`. `finish` receives each exchange once, after its
    response.
    """

    def __init__(
        self,
        app: ASGIApp,
        finish: Callable[[Exchange], None],
        tenants: Tenants,
        clock: Callable[[], float] = time,
    ) -> None:
        self._app = app
        self._clock = clock
        self._finish = finish
        self._tenants = tenants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The first value of each header. Starlette would search all headers for each value.
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        traceparent = headers.get(_TRACE_HEADER)
        api = PATHS.get(scope["path"])
        exchange = Exchange(
            api.name if api is not None and scope["method"] == "POST" else None,
            request_id_in(headers),
            arrived=self._clock(),
            traceparent=None if traceparent is None else traceparent.decode("latin-1"),
        )
        request_id = exchange.request_id.encode("latin-1")
        if not is_proxy_path(scope["path"]):
            exchange.method, exchange.path = scope["method"], scope["path"]
        scope.setdefault("state", {})[_EXCHANGE] = exchange

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = exchange.status or message["status"]
                names = dict(message["headers"])
                missing = id_headers(scope["path"], request_id)
                if names.get(b"x-request-id", request_id) != request_id:
                    missing[_OWN_ID] = request_id
                for name in (b"x-request-id", b"request-id"):
                    if names.get(name, request_id) != request_id:
                        exchange.upstream_request_id = names[name].decode("latin-1")
                added = [header for header in missing.items() if header[0] not in names]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            await self._app(scope, receive, labelled)
        finally:
            if exchange.request is None:
                client = None if exchange.client is None else exchange.client.tenant
                exchange.tenant = self._tenants.tenant_of(Request(scope).headers, client)
            self._finish(exchange)
