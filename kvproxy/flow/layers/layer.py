"""The interfaces of layers. A layer answers a request, or asks the rest of the path."""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import JsonObject, dumps
from kvproxy.backends.protocol import Backend
from kvproxy.exchange import Answer, Exchange
from kvproxy.flow.backend_response import EVENTS, JSON, BackendResponse
from kvproxy.index.entry import Entry, Stale
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.search.lookup_result import Candidate
from kvproxy.settings import CacheSettings

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

    layer: Literal["exact", "semantic", "shared", "refused", "plugin"]
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

    def count_stale(self, reason: Stale | None) -> None:
        """Count a served response; None for a fresh one."""
        if reason is not None:
            self.count("stale", reason)


@dataclass(frozen=True, slots=True)
class PathContext:
    """The parts of the proxy that layers and steps of plugins may use. `clock` returns seconds since the epoch."""

    backend: Backend
    cache: ResponseCache
    settings: CacheSettings
    clock: Callable[[], float]


class PluginLayer(Layer):
    """A layer of a plugin. If it answers without the rest, the exchange names the plugin."""

    def __init__(self, name: str, layer: Layer) -> None:
        super().__init__()
        self.counts = layer.counts
        self._name = name
        self._layer = layer

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        has_asked = False

        async def ask_rest(exchange: Exchange) -> Answer:
            nonlocal has_asked
            has_asked = True
            return await rest(exchange)

        answer = await self._layer.answer(exchange, ask_rest)
        if not has_asked:
            exchange.layer, exchange.plugin = "plugin", self._name
            exchange.status, exchange.first_byte = answer.status, time.perf_counter()
        return answer

    async def predict(self, exchange: Exchange) -> Prediction | None:
        return await self._layer.predict(exchange)


def answer_with(request: ApiRequest, response: JsonObject) -> Answer:
    """Return a complete response in the form of the request's API: as JSON, or as the stream that the request demands."""
    if request.stream:
        return Answer(200, [EVENTS], b"".join(request.api.replay(response, request.body)))
    return Answer(200, [JSON], dumps(response))


class SendingLayer(Protocol):
    async def send(self, exchange: Exchange, rest: Send) -> BackendResponse:
        """Return the backend's response, which `rest` returns, or one that replaces it. Raises a KvproxyError."""
