"""Refuses requests to an overloaded proxy before they are parsed, which costs an eighth of a refusal after the lookup."""

import asyncio
from collections.abc import Awaitable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvproxy.apis import PATHS
from kvproxy.apis.json import dumps
from kvproxy.flow.layers.load_limit import LimitLoad
from kvproxy.http.error_responses import error_body, error_headers
from kvproxy.http.exchange_middleware import id_headers, request_id_in
from kvproxy.http.metrics import Metrics

_BODY_SECONDS = 1.0
"""A body that arrives later is read by the route, which limits the time."""


class RefuseUnread:
    """ASGI middleware that refuses requests to cached APIs for which `LimitLoad.refuses_unread` holds.

    They have no record and no line in the access log, because both take longer than the refusal.
    """

    def __init__(self, app: ASGIApp, load: LimitLoad, metrics: Metrics) -> None:
        self._app = app
        self._load = load
        self._metrics = metrics

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        # A coroutine for each request would take longer than the test.
        if self._load.is_overloaded and scope["type"] == "http" and scope["path"] in PATHS:
            return self._refuse_or_answer(scope, receive, send)
        return self._app(scope, receive, send)

    async def _refuse_or_answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = await _receive_in_time(receive)
        body = None if received is None or received.get("more_body") else received.get("body")
        if body and self._load.refuses_unread(body):
            await self._refuse(scope, send)
        else:
            await self._app(scope, receive if received is None else _replay(received, receive), send)

    async def _refuse(self, scope: Scope, send: Send) -> None:
        error, path, request_id = self._load.refusal(), scope["path"], request_id_in(dict(reversed(scope["headers"])))
        self._metrics.count_error(error)
        body = dumps(error_body(error, path, request_id))
        own = {"content-type": "application/json", "content-length": f"{len(body)}", **error_headers(error)}
        headers = [(name.encode(), value.encode()) for name, value in own.items()]
        headers += id_headers(path, request_id.encode("latin-1")).items()
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _receive_in_time(receive: Receive) -> Message | None:
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            return await receive()
    except TimeoutError:
        return None


def _replay(first: Message, receive: Receive) -> Receive:
    messages = [first]

    async def replayed() -> Any:
        return messages.pop() if messages else await receive()

    return replayed
