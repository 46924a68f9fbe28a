"""The path of a request: read this file first.

`http/routes.py` reads a request, and calls `prepare` and `answer`. Each layer answers, or asks the next one. The last layer joins
an identical request in flight, or calls the backend through the sending layers, once for all clients of the request. When the
response has ended, the observers receive the exchange.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import NoReturn, TypeVar

from kvproxy.apis.api_request import ApiRequest, in_thread_if_large, requests_sampling
from kvproxy.apis.json import JsonObject
from kvproxy.apis.not_stored import UnstorableResponse
from kvproxy.backends.protocol import Backend
from kvproxy.clients.shared_state import SharedState
from kvproxy.doors import LAYERS, PREPARE
from kvproxy.errors import InvalidRequest
from kvproxy.exchange import Answer, CacheKey, Exchange, ResponseFacts
from kvproxy.flow.background_requests import BackgroundRequests
from kvproxy.flow.cache_keys import cache_key
from kvproxy.flow.compare_responses import ResponseComparer
from kvproxy.flow.layers.cached import (
    ExactHits,
    OnlyIfCached,
    SemanticHits,
    StaleIfError,
    StoredResponses,
    UntilDisconnect,
)
from kvproxy.flow.layers.cached_inputs import CachedInputs
from kvproxy.flow.layers.equal_responses import EqualResponses
from kvproxy.flow.layers.forwarded import CallBackend, ChargeQuota, JoinOrForward, Lease, StoreResponse
from kvproxy.flow.layers.layer import Layer, Metric, PathContext, PluginLayer, Prediction, SendingLayer
from kvproxy.flow.layers.load_limit import LimitLoad
from kvproxy.flow.layers.renewal import Renewal
from kvproxy.flow.prepare.diagnoses import PreviousResponses
from kvproxy.flow.prepare.history_repair import HistoryRepair
from kvproxy.flow.prepare.keep_warm import KeepWarm, Pin
from kvproxy.flow.prepare.rules import Rules
from kvproxy.flow.prepare.steps import (
    AddTraceHeader,
    ApplyRule,
    AskForDiagnosis,
    EditPrompt,
    RepairHistory,
    ResolveModel,
    SetBreakpoints,
    Step,
)
from kvproxy.flow.prepare.unread_writes import UnreadWrites
from kvproxy.flow.store_response import ResponseDirectives, ResponseWriter, why_request_forbids_storing
from kvproxy.flow.tenants import Tenants
from kvproxy.index.response_cache import ResponseCache
from kvproxy.journal.journal import Journal
from kvproxy.journal.reasons import reasons
from kvproxy.settings import CacheSettings
from kvproxy.settings.access import AccessSettings
from kvproxy.settings.journal import PriceSettings
from kvproxy.settings.limits import LimitSettings
from kvproxy.settings.path import PathSettings
from kvproxy.telemetry.process_log import log_access

Observer = Callable[[Exchange], None]
_log = logging.getLogger("kvproxy")
T = TypeVar("T")


class RequestPath:
    """The steps, layers, and observers of all requests, from top to bottom.

    Args:
        clock: returns seconds since the epoch.
        comparer: compares new responses with cached ones, for the learned policy; None disables learning.
        prices: prices by model, for keep-warm requests.
        shared: state that several proxies share in PostgreSQL; None for a single proxy.
        pin: see `PrefixCache.pin`; None with an upstream.
        rules: the operator's rules and edits; None applies none.
        count_request, export_spans: receive each ended exchange, for metrics and OpenTelemetry.
        trace_sample_rate: share of new traces that are sampled; None without OpenTelemetry.
        plugins: names of the steps and layers of plugins.
        resolve_model: see `ModelRoutes.resolve`; None if all upstreams serve the same models.

    Raises:
        PluginError: a step or a layer of a plugin cannot be created.
    """

    def __init__(
        self,
        backend: Backend,
        cache: ResponseCache,
        settings: CacheSettings,
        clock: Callable[[], float] = time.time,
        *,
        comparer: ResponseComparer | None = None,
        journal: Journal = Journal(),
        prices: Mapping[str, PriceSettings] = MappingProxyType({}),
        shared: SharedState | None = None,
        pin: Pin | None = None,
        rules: Rules | None = None,
        tenants: Tenants | None = None,
        count_request: Observer = lambda exchange: None,
        export_spans: Observer = lambda exchange: None,
        trace_sample_rate: float | None = None,
        limits: LimitSettings = LimitSettings(),
        plugins: PathSettings = PathSettings(),
        resolve_model: Callable[[ApiRequest], ApiRequest] | None = None,
    ) -> None:
        self.backend = backend
        self.cache = cache
        self.settings = settings
        self.clock = clock
        self.comparer = comparer
        self.journal = journal
        self.rules = rules
        self.tenants = Tenants(AccessSettings()) if tenants is None else tenants

        previous, self.unread_writes = PreviousResponses(), UnreadWrites()
        history, responses = HistoryRepair(), StoredResponses(cache.store, clock)
        self._writer = writer = ResponseWriter(cache, settings, clock, comparer, journal, history)
        self._sending: tuple[SendingLayer, ...] = (
            Lease(shared, writer),
            ChargeQuota(),
            StoreResponse(writer),
            CallBackend(backend, writer.max_bytes),
        )
        forward = JoinOrForward(_compose([layer.send for layer in self._sending]), writer, responses)
        background = BackgroundRequests(forward.join, self.compute_key, self.finish, clock)
        if comparer is not None:
            comparer.report = journal.record_comparison
        self.keep_warm = KeepWarm(background, prices, pin, journal.record_keep_warm)
        context = PathContext(backend, cache, settings, clock)
        # These steps change the cache key, so `explain` runs them, too.
        self._edits: tuple[Step, ...] = (
            *(() if resolve_model is None else (ResolveModel(resolve_model),)),
            ApplyRule(rules),
            EditPrompt(rules),
            RepairHistory(history),
            *(PREPARE.create(name, context) for name in plugins.prepare),
        )
        self._steps: tuple[Step, ...] = (
            *self._edits,
            SetBreakpoints(self.keep_warm, self.unread_writes, clock),
            AskForDiagnosis(previous),
            AddTraceHeader(trace_sample_rate),
        )
        self._layers: tuple[Layer, ...] = (
            *(PluginLayer(name, LAYERS.create(name, context)) for name in plugins.layers),
            renewal := Renewal(background),
            ExactHits(cache, responses, equal := EqualResponses(cache, self.compute_key)),
            CachedInputs(cache, responses, equal, writer.max_bytes, self.compute_key),
            load := LimitLoad(limits, journal),
            UntilDisconnect(),
            similar := SemanticHits(cache, settings, responses),
            OnlyIfCached(),
            StaleIfError(backend, responses, similar, self.finish),
            forward,
        )
        self._observers: tuple[Observer, ...] = (
            count_request,
            journal.add,
            export_spans,
            self.keep_warm.on_finish,
            self.unread_writes.on_finish,
            previous.finished,
            self.tenants.record_answer,
            log_access,
        )
        self._answer = _compose([layer.answer for layer in self._layers])
        self.renewals = renewal
        self.load = load
        self._similar = similar
        self.requests_in_flight = forward.requests

    async def prepare(self, exchange: Exchange) -> None:
        """Replace the exchange's request by the one to answer. Raises a KvproxyError."""
        for step in self._steps:
            await step.prepare(exchange)

    async def edit(self, request: ApiRequest) -> ApiRequest:
        """Return the request with the changes that affect its cache key."""
        exchange = Exchange(request.api.name, request.request_id, request.tenant, request=request)
        for step in self._edits:
            await step.prepare(exchange)
        return exchange.api_request

    async def answer(self, exchange: Exchange) -> Answer:
        """Answer the prepared request of an exchange, and record the outcome there. Raises a KvproxyError."""
        await self._classify(exchange)
        return await self._answer(exchange)

    async def predict(self, exchange: Exchange) -> list[Prediction]:
        """Return what each layer would do that would not ask the rest; the first one would answer. Raises a CacheStoreError."""
        await self._classify(exchange)
        predictions = [await layer.predict(exchange) for layer in self._layers]
        return [prediction for prediction in predictions if prediction is not None]

    async def store(self, request: ApiRequest, body: JsonObject) -> bool:
        """Store a response that no backend computed, durably. Return False if a fresh response to an equal request stays.

        A request with `no-cache` replaces a fresh response. Raises InvalidRequest if no request could hit the response, and
        a CacheStoreError.

        Args:
            request: has the changes of `edit`.
        """
        exchange = Exchange(request.api.name, request.request_id, request.tenant, request=request)
        await self._classify(exchange)
        if exchange.bypass_reason not in (None, "asked-fresh"):
            raise InvalidRequest(f"not stored: {reasons()[exchange.bypass_reason]}")
        if not exchange.storable:
            raise InvalidRequest(f"not stored: {why_request_forbids_storing(request.control).cause.meaning}")
        if (
            not request.control.no_cache
            and await self._writer.find_fresh(exchange, exchange.cache_key.exact) is not None
        ):
            return False
        try:
            write = await self._writer.start_write(exchange, ResponseFacts(), body, ResponseDirectives())
        except UnstorableResponse as error:
            raise InvalidRequest(f"not stored: {error.not_stored.cause.meaning}") from None
        if not await asyncio.shield(write.task):
            raise InvalidRequest("not stored: redaction would change the response, or the store is full")
        return True

    async def _classify(self, exchange: Exchange) -> None:
        """Compute the request's cache key, and decide whether stored responses may answer it."""
        request = exchange.api_request
        sampled = self._requires_new_sample(request)
        if sampled:
            request = replace(request, control=replace(request.control, no_cache=True))
            exchange.request = request
        exchange.cacheable = self.settings.enabled and request.api.is_cacheable(request.body)
        control = request.control
        # The settings' lifetime is positive.
        lasts = (control.ttl is None and control.rule.ttl is None) or self._writer.lifetime(request) > 0
        exchange.storable = exchange.cacheable and not control.no_store and lasts
        if not exchange.cacheable:
            exchange.bypass_reason = "uncacheable"
        elif request.control.rule.cache is False:
            exchange.bypass_reason = "bypass-rule"
        elif request.control.no_cache:
            exchange.bypass_reason = "asked-sample" if sampled else "asked-fresh"
        exchange.key = await self.compute_key(request)

    def _requires_new_sample(self, request: ApiRequest) -> bool:
        control = request.control
        if (control.rule.sampled_requests or self.settings.sampled_requests) == "replay":
            return False
        accepts_stored = control.only_if_cached or control.max_age is not None
        return not accepts_stored and requests_sampling(request.body)

    async def compute_key(self, request: ApiRequest) -> CacheKey:
        settings = self.settings
        compute = partial(
            cache_key,
            request,
            self.backend.name if request.route is None else request.route.backend,
            shared=settings.shared,
            conversations=settings.conversations,
        )
        return await in_thread_if_large(len(request.raw), compute)

    def finish(self, exchange: Exchange) -> None:
        """Report an ended exchange to all observers, even if one of them raises an exception."""
        # A stored response can be large, and the journal keeps the exchange for up to a second.
        exchange.stored_entry = exchange.watch = None
        if exchange.inputs is not None:
            exchange.inputs.stored = exchange.inputs.served = {}
        if not exchange.ended and exchange.layer not in ("exact", "semantic"):
            exchange.ended = time.perf_counter()
        self.load.finish(exchange)
        self._similar.finish(exchange)
        for observer in self._observers:
            try:
                observer(exchange)
            except Exception:
                _log.exception("a finished request could not be reported")

    def counts(self, metric: Metric) -> Counter[str]:
        """Return the sum of the layers' counts for a metric, by label."""
        return sum((layer.counts[metric] for layer in self._layers if metric in layer.counts), Counter())

    async def close(self) -> None:
        self.load.close()
        await self.renewals.close()
        await self.keep_warm.close()
        await self.requests_in_flight.close()
        await self.cache.pending_writes.wait_for_all()
        if self.cache.semantic is not None:
            await self.cache.semantic.deferred_embeddings.stop()


async def _end(exchange: Exchange) -> NoReturn:
    raise AssertionError("the last layer asks no rest")


def _compose(
    steps: Sequence[Callable[..., Coroutine[object, object, T]]],
) -> Callable[[Exchange], Coroutine[object, object, T]]:
    """Return a function that calls the first step, whose argument `rest` calls the next one."""
    rest: Callable[[Exchange], Coroutine[object, object, T]] = _end
    for step in reversed(steps):
        rest = partial(step, rest=rest)
    return rest
