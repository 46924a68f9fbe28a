"""The path of a request: read this file first.

`http/routes.py` reads a request, and calls `prepare` and `answer`. Each layer answers, or asks the rest. The last layer joins an
identical request in flight, or calls the backend through the layers of `SENDING`, once for all clients of the request. When the
response has ended, the observers receive the exchange.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import NoReturn

from kvproxy.apis.api_request import ApiRequest
from kvproxy.exchange import Answer, Exchange
from kvproxy.flow.answer import Answerer
from kvproxy.flow.layers.around import Renewal, UntilDisconnect
from kvproxy.flow.layers.cached import ExactHits, OnlyIfCached, SemanticHits, StaleHits, StaleIfError
from kvproxy.flow.layers.forwarded import CallBackend, ChargeQuota, JoinOrForward, Lease, StoreResponse
from kvproxy.flow.layers.layer import Layer, Prediction, Rest, Send, SendingLayer
from kvproxy.flow.observers import (
    CountRequest,
    ExportSpans,
    KeepPrefixWarm,
    LogAccess,
    Observer,
    RememberToken,
    WriteRecord,
)
from kvproxy.flow.prepare.steps import AddTraceHeader, ApplyRule, EditPrompt, RepairHistory, SetBreakpoints, Step

EDITS: tuple[Callable[[Answerer], Step], ...] = (ApplyRule, EditPrompt, RepairHistory)
"""These steps change the cache key, so `explain` runs them, too."""
PREPARE: tuple[Callable[[Answerer], Step], ...] = (*EDITS, SetBreakpoints, AddTraceHeader)
LAYERS: tuple[Callable[[Answerer], Layer], ...] = (
    Renewal,
    ExactHits,
    UntilDisconnect,
    StaleHits,
    SemanticHits,
    OnlyIfCached,
    StaleIfError,
    JoinOrForward,
)
SENDING: tuple[Callable[[Answerer], SendingLayer], ...] = (Lease, ChargeQuota, StoreResponse, CallBackend)
OBSERVERS: tuple[Callable[[Answerer], Observer], ...] = (
    CountRequest,
    WriteRecord,
    ExportSpans,
    KeepPrefixWarm,
    RememberToken,
    LogAccess,
)
_log = logging.getLogger("kvproxy")


class RequestPath:
    """The steps, layers, and observers, built from the parts that they use."""

    def __init__(self, parts: Answerer) -> None:
        self.parts = parts
        self._steps = [step(parts) for step in PREPARE]
        self._layers = [layer(parts) for layer in LAYERS]
        self._answer = _compose_layers(self._layers)
        self._observers = [observer(parts) for observer in OBSERVERS]
        parts.single_flight.send = _compose_sending([layer(parts) for layer in SENDING])
        parts.finish = self.finish

    async def prepare(self, exchange: Exchange) -> None:
        for step in self._steps:
            await step.prepare(exchange)

    async def edit(self, request: ApiRequest) -> ApiRequest:
        """Return the request with the changes that affect its cache key."""
        exchange = Exchange(request.api.name, request.request_id, request.tenant, request=request)
        for step in self._steps[: len(EDITS)]:
            await step.prepare(exchange)
        return exchange.api_request

    async def answer(self, exchange: Exchange) -> Answer:
        """Answer the prepared request of an exchange, and record the outcome there. Raises a KvproxyError."""
        await self.parts.classify(exchange)
        return await self._answer(exchange)

    async def predict(self, exchange: Exchange) -> list[Prediction]:
        """Return what each layer would do that would not ask the rest; the first one would answer. Raises a CacheStoreError."""
        await self.parts.classify(exchange)
        predictions = [await layer.predict(exchange) for layer in self._layers]
        return [prediction for prediction in predictions if prediction is not None]

    def finish(self, exchange: Exchange) -> None:
        """Report an ended exchange to all observers, even if one of them raises an exception."""
        # A stored response can be large, and the journal keeps the exchange for up to a second.
        exchange.stored_entry = exchange.watch = None
        if not exchange.ended and exchange.layer not in ("exact", "semantic"):
            exchange.ended = perf_counter()
        for observer in self._observers:
            try:
                observer.finished(exchange)
            except Exception:
                _log.exception("a finished request could not be reported")


async def _end(exchange: Exchange) -> NoReturn:
    raise AssertionError("the last layer asks no rest")


def _compose_layers(layers: Sequence[Layer]) -> Rest:
    rest: Rest = _end
    for layer in reversed(layers):
        rest = partial(layer.answer, rest=rest)
    return rest


def _compose_sending(layers: Sequence[SendingLayer]) -> Send:
    rest: Send = _end
    for layer in reversed(layers):
        rest = partial(layer.send, rest=rest)
    return rest
