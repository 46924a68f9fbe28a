"""What every response carries, whoever made it: Cache-Status, X-Request-Id and Date."""

import uuid
from email.utils import formatdate

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Labels:
    """ASGI middleware that adds the three headers where a response has none of its own.

    The request id is the client's, or a new one; it is at `scope["state"]["request_id"]`. A response that an upstream
    gave an id keeps that one.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given or uuid.uuid4().hex.encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode("latin-1")

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                missing = {
                    b"cache-status": b"kvproxy; fwd=bypass",
                    b"x-request-id": request_id,
                    b"date": formatdate(usegmt=True).encode(),
                }
                added = [header for header in missing.items() if header[0] not in names]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await self._app(scope, receive, labelled)
