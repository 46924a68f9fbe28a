"""Answers a request: exact lookup, semantic lookup, identical request in flight, backend.

`fresh_and_stale_hits.py` has the lookups, `single_flight.py` sends requests, `store_response.py` stores responses.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from kvproxy.apis.api_request import ApiRequest, in_thread_if_large, requests_sampling
from kvproxy.backends.protocol import Backend
from kvproxy.errors import DeadlineExceeded, KvproxyError, NotCached, UpstreamProtocolError
from kvproxy.exchange import Answer, CacheKey, Exchange, ForwardReason
from kvproxy.flow.cache_keys import cache_key
from kvproxy.flow.compare_responses import ResponseComparer
from kvproxy.flow.fresh_and_stale_hits import CacheLookup
from kvproxy.flow.history_repair import HistoryRepair
from kvproxy.flow.keep_warm import KeepWarm, Pin
from kvproxy.flow.revalidate import BackgroundRequests, Revalidator
from kvproxy.flow.single_flight import SingleFlight
from kvproxy.flow.store_response import ResponseWriter
from kvproxy.index.response_cache import ResponseCache
from kvproxy.journal.journal import Journal
from kvproxy.settings import CacheSettings
from kvproxy.settings.journal import PriceSettings
from kvproxy.shared_state import SharedState

HOLD_SECONDS = 1.0
"""Maximum delay of the headers of a response without a stream, so that `Cache-Status` can name the stored response."""

Watch = Callable[[Coroutine[Any, Any, Answer]], Awaitable[Answer]]
Value = TypeVar("Value")


class Answerer:
    """Answers requests from the caches or the backend.

    Args:
        comparer: compares new responses with cached ones, for the learned policy; None disables learning.
        finish: receives the exchange of each background request when it has ended; None stores it in the journal.
        shared: state that several proxies share in PostgreSQL; None for a single proxy.
        pin: see `PrefixCache.pin`; None with an upstream.
    """

    def __init__(
        self,
        backend: Backend,
        cache: ResponseCache,
        settings: CacheSettings,
        clock: Callable[[], float] = time.time,
        comparer: ResponseComparer | None = None,
        journal: Journal = Journal(),
        finish: Callable[[Exchange], None] | None = None,
        prices: Mapping[str, PriceSettings] = MappingProxyType({}),
        shared: SharedState | None = None,
        pin: Pin | None = None,
    ) -> None:
        self.backend = backend
        self.cache = cache
        self.store = cache.store
        self.semantic = cache.semantic
        self.comparer = comparer
        self.journal = journal
        self.settings = settings
        self.finish = finish or journal.add
        self.clock = clock
        self.lookups = CacheLookup(cache, settings, clock)
        self.lookup_counts = self.lookups.lookup_counts
        self.history = HistoryRepair()
        writer = ResponseWriter(self.cache, settings, backend.name, clock, comparer, journal, self.history)
        self._single_flight = SingleFlight(backend, writer, shared)
        self.shared_requests = self._single_flight.requests
        background = BackgroundRequests(self._single_flight.join, self.compute_key, self.finish, clock)
        self._revalidator = Revalidator(background)
        self.keep_warm = KeepWarm(background, prices, pin)

    @property
    def stale_counts(self) -> dict[str, int]:
        return dict(self.lookups.stale_counts) | self._revalidator.counts

    async def answer(self, exchange: Exchange, watch: Watch | None = None) -> Answer:
        """Answer the request of an exchange, and record the outcome in the exchange. Raises a KvproxyError.

        Args:
            watch: awaits all steps after the exact lookup, and cancels them when the client disconnects. None never cancels them.
        """
        await self.classify(exchange)
        answer = await self._find_exact_in_time(exchange) if exchange.cacheable else None
        if answer is None:
            work = self._answer_after_exact(exchange)
            answer = await (work if watch is None else watch(work))
        self._revalidator.begin(exchange)
        return answer

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

    async def _find_exact_in_time(self, exchange: Exchange) -> Answer | None:
        seconds = exchange.api_request.control.timeout
        if seconds is None or not self.store.remote:
            return await self.lookups.find_exact(exchange)
        left = max(0.0, seconds - (time.perf_counter() - exchange.started))
        return await _with_timeout(left, self.lookups.find_exact(exchange), "the store did not answer")

    def _requires_new_sample(self, request: ApiRequest) -> bool:
        control = request.control
        if (control.rule.sampled_requests or self.settings.sampled_requests) == "replay":
            return False
        accepts_stored = control.only_if_cached or control.max_age is not None
        return not accepts_stored and requests_sampling(request.body)

    async def _answer_after_exact(self, exchange: Exchange) -> Answer:
        if exchange.bypass_reason is None:
            hit = await self.lookups.serve_stale(exchange) or await self.lookups.find_semantic(exchange)
            if hit is not None:
                return hit
        if exchange.api_request.control.only_if_cached:
            raise NotCached("no stored response answers this request, and only-if-cached forbids a call of the backend")
        if self.backend.failure() is not None and (hit := await self.lookups.fall_back(exchange)) is not None:
            return hit
        try:
            seconds = self.lookups.fallback_timeout(exchange)
            return await _with_timeout(seconds, self._forward(exchange), "no fresh answer came")
        except KvproxyError as error:
            if error.status < 500 or (hit := await self.lookups.fall_back(exchange)) is None:
                raise
            return hit

    async def _forward(self, exchange: Exchange) -> Answer:
        confirm = exchange.api_request.control.confirm
        shared, collapsed = self._single_flight.join(exchange)

        try:
            response = await shared.wait_for_head()
            if response.entry is not None:
                stored = await self.lookups.replay(exchange, response.entry)
                shared.release()
                return stored
            complete = not response.streams and await shared.wait_until_complete(None if confirm else HOLD_SECONDS)
            if shared.error is not None and not isinstance(shared.error, UpstreamProtocolError):
                raise shared.error
            failed = response.status >= 500 or shared.error is not None
            if failed and (hit := await self.lookups.fall_back(exchange)) is not None:
                shared.release()
                return hit
            exchange.was_collapsed, exchange.forward_reason = collapsed, self._forward_reason(exchange)
            exchange.requested_ttl = self._single_flight.requested_ttl(exchange, response.headers)
            exchange.stored = complete and confirm and await shared.wait_until_stored()
            shared.begin(exchange)
            if not complete:
                chunks = shared.chunks(confirm=confirm)
                return Answer(response.status, response.headers, chunks, partial(shared.end, exchange))
            body = await shared.body()
        except BaseException:
            shared.release()
            raise
        shared.end(exchange)
        return Answer(response.status, response.headers, body)

    def _forward_reason(self, exchange: Exchange) -> ForwardReason:
        if not exchange.cacheable or exchange.api_request.control.rule.cache is False:
            return "bypass"
        if exchange.stale_entry is not None:
            return "stale"
        return "request" if exchange.is_entry_refused else "uri-miss"

    async def compute_key(self, request: ApiRequest) -> CacheKey:
        settings = self.settings
        compute = partial(
            cache_key, request, self.backend.name, shared=settings.shared, conversations=settings.conversations
        )
        return await in_thread_if_large(len(request.raw), compute)

    async def close(self) -> None:
        await self._revalidator.close()
        await self.keep_warm.close()
        await self.shared_requests.close()
        await self.cache.pending_writes.wait_for_all()
        if self.semantic is not None:
            await self.semantic.deferred_embeddings.stop()


async def _with_timeout(seconds: float | None, work: Awaitable[Value], problem: str) -> Value:
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError:
        raise DeadlineExceeded(f"{problem} within x-kvproxy-timeout") from None
