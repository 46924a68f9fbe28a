"""What an operator reads or changes includes the answers that clients have by then, also those on their way to the store."""

from starlette.types import ASGIApp, Receive, Scope, Send

from kvproxy.index.pending_writes import PendingWrites

_SECONDS = 5.0
"""A store that hangs must not keep its operator from looking."""


class CaughtUp:
    """ASGI middleware in front of the admin routes: waits for what is on its way to the store when a request comes."""

    def __init__(self, app: ASGIApp, coming: PendingWrites) -> None:
        self._app = app
        self._coming = coming

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._coming.wait(_SECONDS)
        await self._app(scope, receive, send)
