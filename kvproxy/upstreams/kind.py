"""Kinds of upstreams: what is special about the servers of one kind, such as the slots of llama.cpp."""

from collections.abc import Sequence
from typing import Protocol

from kvproxy.apis.api_request import ApiRequest
from kvproxy.backends.protocol import RelayedResponse
from kvproxy.backends.reports import EngineResetResult, PrefixReport
from kvproxy.blocks.row_types import BlockContent, BlockRow, ChainRow
from kvproxy.settings import Settings
from kvproxy.upstreams.client import UpstreamClient
from kvproxy.upstreams.status import SlotsStatus


class PlacedRequest:
    """A request in the form that a server of the kind expects. One of `record_response` and `abandon` is called.

    Attributes:
        predicted_tokens: prompt tokens that the server should reuse; None if unknown.
        uncached_tokens: prompt tokens that it should compute; an estimate.
    """

    predicted_tokens: int | None = None
    uncached_tokens: int = 0

    def __init__(self, request: ApiRequest) -> None:
        self.request = request

    def record_response(self, reply: RelayedResponse) -> None:
        """The server responded: `reply` may be observed or changed."""

    def abandon(self) -> None:
        """The request failed before its response."""


class PrefixView(Protocol):
    """Reports on the prefix cache of one server; see `PrefixCache`."""

    async def failure(self) -> str | None:
        """Return why the server cannot be reached, so that its cache is lost; None otherwise."""

    async def blocks(self) -> list[BlockRow]: ...

    async def eviction_queue(self) -> list[BlockRow]: ...

    async def chains(self) -> list[ChainRow]: ...

    async def find(self, name: str) -> list[BlockContent]: ...

    async def detokenize(self, tokens: Sequence[int] | None) -> str | None: ...

    async def explain(self, request: ApiRequest) -> PrefixReport: ...

    async def reset(self) -> EngineResetResult: ...


class UpstreamKind:
    """One server of a kind. Subclasses override what is special."""

    def __init__(self, client: UpstreamClient, settings: Settings) -> None:
        self.client = client

    async def place(self, request: ApiRequest) -> PlacedRequest | None:
        """Return the form of a request for this server; None sends the request itself."""
        return None

    async def probe(self, failure: str | None) -> None:
        """Called after each health probe with its failure; None if the server responded."""

    async def close(self) -> None: ...

    def problems(self) -> list[str]:
        """Return problems of the server with their fixes."""
        return []

    def advice(self) -> list[str]:
        return []

    def slots(self) -> SlotsStatus | None:
        return None

    def prefix_view(self) -> PrefixView | None:
        """Return a report on the server's prefix cache; None if its content is unknown."""
        return None

    async def explain(self, request: ApiRequest) -> PrefixReport | None:
        """Return what the server would reuse of a prompt; None if it reports that with its response only."""
        view = self.prefix_view()
        return None if view is None else await view.explain(request)
