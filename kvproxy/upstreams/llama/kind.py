"""The kind llama.cpp: it detects whether a server is one, and chooses the slots of its requests."""

from kvproxy.apis.api_request import ApiRequest
from kvproxy.privacy.encryption import load_cipher
from kvproxy.settings import Settings
from kvproxy.upstreams.client import UpstreamClient
from kvproxy.upstreams.kind import PlacedRequest, PrefixView, UpstreamKind
from kvproxy.upstreams.llama.server import LlamaServer
from kvproxy.upstreams.llama.slot_view import SlotView
from kvproxy.upstreams.status import SlotsStatus


class LlamaKind(UpstreamKind):
    def __init__(self, client: UpstreamClient, settings: Settings) -> None:
        super().__init__(client, settings)
        self._server = LlamaServer(client, settings.slots, settings.data, load_cipher(settings.encryption))

    async def place(self, request: ApiRequest) -> PlacedRequest | None:
        return await self._server.place(request)

    async def probe(self, failure: str | None) -> None:
        if failure is not None:
            # Another server may start at this URL.
            self._server.is_identified = False
        elif not self._server.is_identified:
            await self._server.identify()

    async def close(self) -> None:
        await self._server.close()

    def problems(self) -> list[str]:
        return self._server.problems()

    def advice(self) -> list[str]:
        return self._server.advice()

    def slots(self) -> SlotsStatus | None:
        return self._server.status()

    def prefix_view(self) -> PrefixView | None:
        return SlotView(self._server) if self._server.is_active else None
