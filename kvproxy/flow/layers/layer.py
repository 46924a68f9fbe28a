"""The interfaces of layers. A layer answers a request, or asks the rest of the path."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from kvproxy.exchange import Answer, Exchange, Stale
from kvproxy.flow.backend_response import BackendResponse
from kvproxy.index.entry import Entry
from kvproxy.index.search.lookup_result import Candidate

Rest: TypeAlias = Callable[[Exchange], Coroutine[Any, Any, Answer]]
Send: TypeAlias = Callable[[Exchange], Awaitable[BackendResponse]]
Metric = Literal["lookups", "stale"]
"""`lookups`: results of semantic lookups. `stale`: served stale responses, and results of their renewals."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer that a layer would give to a request.

    Attributes:
        layer: as in the journal: a stored response, the response to an identical request in flight, or a refusal.
        entry: the stored response that would be served.
        match: the question of a semantic hit.
    """

    layer: Literal["exact", "semantic", "shared", "refused"]
    entry: Entry | None = None
    match: Candidate | None = None
    stale: Stale | None = None


class Layer(ABC):
    """One layer of the path. A layer that may answer overrides `predict`, too.

    Attributes:
        counts: numbers of events by metric and label since the start of the proxy.
    """

    def __init__(self) -> None:
        self.counts: dict[Metric, Counter[str]] = {}

    @abstractmethod
    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        """Answer the exchange's request, or return what the rest of the path answers. Raises a KvproxyError."""

    async def predict(self, exchange: Exchange) -> Prediction | None:
        """Return what `answer` would do, without side effects outside of the exchange; None if it would ask the rest."""
        return None

    def count(self, metric: Metric, label: str) -> None:
        self.counts.setdefault(metric, Counter())[label] += 1


class SendingLayer(Protocol):
    async def send(self, exchange: Exchange, rest: Send) -> BackendResponse:
        """Return the backend's response, which `rest` returns, or one that replaces it. Raises a KvproxyError."""
