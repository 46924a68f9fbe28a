"""What backends that tests make up have in common."""

from kvproxy.apis.json import JsonObject
from kvproxy.backends.protocol import Forwarder


class QuietBackend:
    """A backend with nothing to begin, to end or to forward; it never fails, and has no models."""

    forwarder: Forwarder | None = None

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    def failure(self) -> str | None: ...
    async def models(self) -> JsonObject:
        return {}
