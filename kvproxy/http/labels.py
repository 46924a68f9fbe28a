"""What every response carries, whoever made it: Cache-Status, X-Request-Id and Date; and the record of what no route read."""

import time
from collections.abc import Sequence
from email.utils import formatdate
from functools import lru_cache

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvproxy.apis import APIS
from kvproxy.flow.keys import tenant_of
from kvproxy.ids import Ids
from kvproxy.journal.draft import Draft
from kvproxy.journal.journal import Journal
from kvproxy.settings.clients import ClientSettings
from kvproxy.trace import HEADER

SEEN = "seen"
"""In a request's state: the flow has seen it, and writes its record."""
PASSED = "passed"
"""In a request's state: it was passed on unread."""
_APIS = {api.path: name for name, api in APIS.items()}
_TRACEPARENT = HEADER.encode()
_OWN_ID = b"x-kvproxy-request-id"


class Labels:
    """ASGI middleware that adds the three headers where a response has none of its own.

    The request id is the client's, or a new one; it is at `scope["state"]["request_id"]`. A response that an upstream
    gave an id keeps that one, and ours stands in `x-kvproxy-request-id`.

    Args:
        journal: gets a record of each request to a cached API that the flow has not seen.
        tenants: headers that tell clients apart.
    """

    def __init__(self, app: ASGIApp, journal: Journal, tenants: Sequence[str]) -> None:
        self._app = app
        self._journal = journal
        self._tenants = tenants
        self._ids = RequestIds()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._ids.of(scope)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id.decode("latin-1")
        status, began, arrived = 0, time.perf_counter(), time.time()

        async def labelled(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                names = dict(message["headers"])
                missing = {
                    b"cache-status": b"kvproxy; fwd=bypass",
                    b"x-request-id": request_id,
                    b"date": date(int(time.time())),
                }
                if names.get(b"x-request-id", request_id) != request_id:
                    missing[_OWN_ID] = request_id
                added = [header for header in missing.items() if header[0] not in names]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            await self._app(scope, receive, labelled)
        finally:
            if scope["path"] in _APIS and scope["method"] == "POST" and not state.get(SEEN):
                draft = Draft(_APIS[scope["path"]], state["request_id"], self._tenant(scope), None, arrived)
                draft.began, draft.ended, draft.status = began, time.perf_counter(), status
                parent = next((value for name, value in scope["headers"] if name == _TRACEPARENT), None)
                draft.traceparent = None if parent is None else parent.decode("latin-1")
                draft.layer = "bypass" if state.get(PASSED) else "refused"
                self._journal.add(draft)

    def _tenant(self, scope: Scope) -> str:
        client: ClientSettings | None = scope["state"].get("client")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        return tenant_of(headers, self._tenants, None if client is None else client.tenant)


class RequestIds:
    """Names requests."""

    def __init__(self) -> None:
        self._ids = Ids()

    def of(self, scope: Scope) -> bytes:
        """The id of a request: the client's, or a new one."""
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        return given or self._ids.new().encode()


@lru_cache(maxsize=1)
def date(second: int) -> bytes:
    """A second as HTTP writes it."""
    return formatdate(second, usegmt=True).encode()
