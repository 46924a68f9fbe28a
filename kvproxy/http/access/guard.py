"""Turns requests away before any route sees them: pages of other origins everywhere, and strangers on the admin routes."""

import logging

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvproxy.errors import KvproxyError
from kvproxy.http.access.rules import Access
from kvproxy.http.failures import failed

_READING = ("GET", "HEAD")
_LOOKS_ONLY = "/admin/explain"  # It takes a body, and changes nothing.
_log = logging.getLogger("kvproxy.admin")


class PageGuard:
    """ASGI middleware in front of every route; see `Access.page`."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._access.page(Request(scope)) if scope["type"] == "http" else None
        if refused is not None:
            await _refuse(refused, scope, receive, send)
            return
        await self._app(scope, receive, send)


class AdminGuard:
    """ASGI middleware in front of the admin routes; see `Access.admin`. What changes something is logged."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        refused = self._access.admin(request)
        if refused is not None:
            _tell(request, refused.status)
            await _refuse(refused, scope, receive, send)
            return

        async def send_response(message: Message) -> None:
            if message["type"] == "http.response.start":
                _tell(request, message["status"])
            await send(message)

        await self._app(scope, receive, send_response)


async def _refuse(error: KvproxyError, scope: Scope, receive: Receive, send: Send) -> None:
    await failed(error)(scope, receive, send)


def _tell(request: Request, status: int) -> None:
    if request.method not in _READING and request.url.path != _LOOKS_ONLY:
        who = request.client.host if request.client is not None else "?"
        query = f"?{request.url.query}" if request.url.query else ""
        _log.info("%s %s%s from %s: %s", request.method, request.url.path, query, who, status)
