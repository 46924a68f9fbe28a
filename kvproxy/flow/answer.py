"""The parts that the layers of a request's path use: caches, backend, and journal."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from kvproxy.apis.api_request import ApiRequest, in_thread_if_large, requests_sampling
from kvproxy.backends.protocol import Backend
from kvproxy.clients.shared_state import SharedState
from kvproxy.exchange import CacheKey, Exchange
from kvproxy.flow.cache_keys import cache_key
from kvproxy.flow.compare_responses import ResponseComparer
from kvproxy.flow.fresh_and_stale_hits import CacheLookup
from kvproxy.flow.prepare.history_repair import HistoryRepair
from kvproxy.flow.prepare.keep_warm import KeepWarm, Pin
from kvproxy.flow.prepare.rules import Rules
from kvproxy.flow.revalidate import BackgroundRequests, Revalidator
from kvproxy.flow.single_flight import SingleFlight
from kvproxy.flow.store_response import ResponseWriter
from kvproxy.flow.tenants import Tenants
from kvproxy.index.response_cache import ResponseCache
from kvproxy.journal.journal import Journal
from kvproxy.settings import CacheSettings
from kvproxy.settings.access import AccessSettings
from kvproxy.settings.journal import PriceSettings


class Answerer:
    """The caches, the backend, and the journal, with which `RequestPath` answers requests.

    Args:
        comparer: compares new responses with cached ones, for the learned policy; None disables learning.
        shared: state that several proxies share in PostgreSQL; None for a single proxy.
        pin: see `PrefixCache.pin`; None with an upstream.
        rules: the operator's rules and edits; None applies none.
        count_request, export_spans: receive each ended exchange, for metrics and OpenTelemetry.
        trace_sample_rate: share of new traces that are sampled; None without OpenTelemetry.

    Attributes:
        finish: reports an ended exchange to the observers of the path.
    """

    def __init__(
        self,
        backend: Backend,
        cache: ResponseCache,
        settings: CacheSettings,
        clock: Callable[[], float] = time.time,
        comparer: ResponseComparer | None = None,
        journal: Journal = Journal(),
        prices: Mapping[str, PriceSettings] = MappingProxyType({}),
        shared: SharedState | None = None,
        pin: Pin | None = None,
        rules: Rules | None = None,
        count_request: Callable[[Exchange], None] = lambda exchange: None,
        export_spans: Callable[[Exchange], None] = lambda exchange: None,
        trace_sample_rate: float | None = None,
        tenants: Tenants | None = None,
    ) -> None:
        self.backend = backend
        self.cache = cache
        self.store = cache.store
        self.semantic = cache.semantic
        self.comparer = comparer
        self.journal = journal
        self.settings = settings
        self.rules = rules
        self.tenants = Tenants(AccessSettings()) if tenants is None else tenants
        self.count_request = count_request
        self.export_spans = export_spans
        self.trace_sample_rate = trace_sample_rate
        self.finish: Callable[[Exchange], None] = journal.add
        self.clock = clock
        self.lookups = CacheLookup(cache, settings, clock)
        self.lookup_counts = self.lookups.lookup_counts
        self.history = HistoryRepair()
        self.shared = shared
        self.writer = ResponseWriter(self.cache, settings, backend.name, clock, comparer, journal, self.history)
        self.single_flight = SingleFlight(self.writer)
        self.shared_requests = self.single_flight.requests
        background = BackgroundRequests(
            self.single_flight.join, self.compute_key, lambda exchange: self.finish(exchange), clock
        )
        self.revalidator = Revalidator(background)
        self.keep_warm = KeepWarm(background, prices, pin)

    @property
    def stale_counts(self) -> dict[str, int]:
        return dict(self.lookups.stale_counts) | self.revalidator.counts

    async def classify(self, exchange: Exchange) -> None:
        """Compute the request's cache key, and decide whether stored responses may answer it."""
        request = exchange.api_request
        sampled = self._requires_new_sample(request)
        if sampled:
            request = replace(request, control=replace(request.control, no_cache=True))
            exchange.request = request
        exchange.cacheable = self.settings.enabled and request.api.is_cacheable(request.body)
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
            cache_key, request, self.backend.name, shared=settings.shared, conversations=settings.conversations
        )
        return await in_thread_if_large(len(request.raw), compute)

    async def close(self) -> None:
        await self.revalidator.close()
        await self.keep_warm.close()
        await self.shared_requests.close()
        await self.cache.pending_writes.wait_for_all()
        if self.semantic is not None:
            await self.semantic.deferred_embeddings.stop()
