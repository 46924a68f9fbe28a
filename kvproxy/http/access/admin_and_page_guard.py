import logging

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvproxy.http.access.access_rules import READ_METHODS, AccessRules
from kvproxy.http.error_responses import error_response
from kvproxy.index.pending_writes import PendingWrites

_READ_ONLY = "/admin/explain"  # A POST route that changes nothing.
_WAIT_SECONDS = 5.0
"""Maximum wait for the response cache's pending writes, so that a blocked store does not block admin routes."""
_log = logging.getLogger("kvproxy.admin")


class PageGuard:
    def __init__(self, app: ASGIApp, access: AccessRules) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._access.check_page(Request(scope)) if scope["type"] == "http" else None
        await (self._app if refused is None else error_response(refused, scope["path"]))(scope, receive, send)


class AdminGuard:
    """Requires the operator for admin routes, and logs requests that may change data.

    A request waits for pending writes first, so that it lists every response that a client has received.
    """

    def __init__(self, app: ASGIApp, access: AccessRules, writes: PendingWrites) -> None:
        self._app = app
        self._access = access
        self._writes = writes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)

        async def send_logged(message: Message) -> None:
            if message["type"] == "http.response.start":
                _log_change(request, message["status"])
            await send(message)

        refused = self._access.check_operator(request)
        if refused is None:
            await self._writes.wait(_WAIT_SECONDS)
        await (self._app if refused is None else error_response(refused, request.url.path))(scope, receive, send_logged)


def _log_change(request: Request, status: int) -> None:
    if request.method not in READ_METHODS and request.url.path != _READ_ONLY:
        client = request.client.host if request.client is not None else "?"
        query = f"?{request.url.query}" if request.url.query else ""
        _log.info("%s %s%s from %s: %s", request.method, request.url.path, query, client, status)
