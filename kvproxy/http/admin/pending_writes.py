"""Admin routes read and change the store only after pending writes, so that they see the responses that clients have."""

from starlette.types import ASGIApp, Receive, Scope, Send

from kvproxy.index.pending_writes import PendingWrites

_TIMEOUT_SECONDS = 5.0
"""A blocked store must not block the operator."""


class WaitForPendingWrites:
    """ASGI middleware that waits for the pending writes of the store."""

    def __init__(self, app: ASGIApp, writes: PendingWrites) -> None:
        self._app = app
        self._writes = writes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._writes.wait(_TIMEOUT_SECONDS)
        await self._app(scope, receive, send)
