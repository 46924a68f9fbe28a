"""Serves fresh and stale responses from the cache, after exact and semantic lookups."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from kvproxy.apis.api import response_for_client
from kvproxy.apis.api_request import ApiRequest, in_thread_if_large
from kvproxy.apis.json import as_object, loads
from kvproxy.exchange import Answer, CacheHit, Exchange, Stale
from kvproxy.flow.backend_response import EVENTS, JSON
from kvproxy.flow.echoed_fields import response_for
from kvproxy.index.entry import Entry
from kvproxy.index.entry_redaction import RedactionFailed
from kvproxy.index.errors import CacheStoreError, EmbedderError
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.search.lookup_result import FRESH, SERVABLE_AFTER_ERROR, Candidate
from kvproxy.settings import CacheSettings

_FALLBACK_FRACTION = 0.9  # Of the client's timeout, after which a stale response is served.
_log = logging.getLogger("kvproxy")


class CacheLookup:
    def __init__(self, cache: ResponseCache, settings: CacheSettings, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._store = cache.store
        self._semantic = cache.semantic
        self._settings = settings
        self._clock = clock
        self.lookup_counts: Counter[str] = Counter()
        self.stale_counts: Counter[str] = Counter()

    async def find_exact(self, exchange: Exchange) -> Answer | None:
        """Serve the response to an equal request if it is fresh; if it has expired, set the exchange's `stale_entry`."""
        with _logging_failures(exchange):
            entry = await self._cache.find(exchange.cache_key.exact)
            exchange.exact_done = time.perf_counter()
            if entry is None:
                return None
            if entry.expires <= self._clock():
                exchange.stale_entry = entry
            elif self.request_accepts(entry, exchange):
                return await self.replay(exchange, entry)
            else:
                exchange.is_entry_refused = True
        return None

    async def serve_stale(self, exchange: Exchange) -> Answer | None:
        """Serve the exchange's `stale_entry` if it is in its stale-while-revalidate period, and the request accepts it."""
        entry = exchange.stale_entry
        if entry is None or self.stale_reason(entry, exchange) != "stale-while-revalidate":
            return None
        return await self._stale_hit(exchange, entry, "stale-while-revalidate")

    def fallback_timeout(self, exchange: Exchange) -> float | None:
        """Return the seconds to wait for the backend before `stale_entry` is served; None for no limit."""
        timeout, entry = exchange.api_request.control.timeout, exchange.stale_entry
        if timeout is None or entry is None or exchange.bypass_reason is not None:
            return None
        if self.stale_reason(entry, exchange, failed=True) is None:
            return None
        return max(0.0, _FALLBACK_FRACTION * timeout - (time.perf_counter() - exchange.started))

    async def fall_back(self, exchange: Exchange) -> Answer | None:
        """After a failure of the backend, serve `stale_entry`, or else the response to a similar question."""
        if exchange.bypass_reason is not None:
            return None
        entry = exchange.stale_entry
        if entry is not None and self.stale_reason(entry, exchange, failed=True) is not None:
            return await self._stale_hit(exchange, entry, "stale-if-error")
        return await self.find_semantic(exchange, failed=True)

    async def _stale_hit(self, exchange: Exchange, entry: Entry, stale: Stale) -> Answer | None:
        with _logging_failures(exchange):
            return await self.replay(exchange, entry, stale=stale)
        return None

    def stale_reason(self, entry: Entry, exchange: Exchange, *, failed: bool = False) -> Stale | None:
        control, now = exchange.api_request.control, self._clock()
        freshness = entry.freshness(now)
        if freshness in ("fresh", "expired"):
            return None
        if not failed:
            # A request with max-age accepts no expired response.
            accepted = freshness == "stale-while-revalidate" and control.max_age is None
            return "stale-while-revalidate" if accepted else None
        if control.stale_if_error is None:
            return "stale-if-error" if control.max_age is None else None
        return "stale-if-error" if now - entry.expires <= control.stale_if_error else None

    async def find_semantic(self, exchange: Exchange, *, failed: bool = False) -> Answer | None:
        """Serve the response to a similar question; if the backend has `failed`, also in its stale-if-error period."""
        request, key = exchange.api_request, exchange.cache_key
        if exchange.lookup_failed or request.control.rule.semantic is False:
            return None
        with _logging_failures(exchange):
            if self._semantic is None or key.text is None or not await self._cache.is_unchanged_by_redaction(key.text):
                return None
            seconds = None if failed or request.control.only_if_cached else self._settings.lookup_timeout
            lookup = await self._semantic.lookup(
                key.namespace,
                key.text,
                limits=request.control.limits,
                seconds=seconds,
                explore=not failed,
                allowed_freshness=SERVABLE_AFTER_ERROR if failed else FRESH,
                policy=request.control.rule.policy,
            )
            is_first = exchange.lookup is None
            exchange.semantic_done, exchange.lookup = time.perf_counter(), lookup
            entry = lookup.entry
            stale = None if entry is None else self.stale_reason(entry, exchange, failed=failed)
            is_servable = entry is not None and (
                stale is not None or (entry.expires > self._clock() and self.request_accepts(entry, exchange))
            )
            if is_first and not exchange.is_warming:
                outcome = lookup.outcome if entry is None or is_servable else "accepted but not served"
                self.lookup_counts[outcome] += 1
            if entry is None or not is_servable or self._settings.shadow:
                return None
            if self._semantic.learning is not None and not exchange.is_warming:
                self._semantic.learning.record_served(lookup)
            return await self.replay(exchange, entry, lookup.chosen, stale)
        return None

    def may_serve(self, entry: Entry, exchange: Exchange) -> bool:
        """Whether the request accepts a stored response while the backend works: a fresh one, or one to revalidate."""
        if entry.expires > self._clock():
            return self.request_accepts(entry, exchange)
        return self.stale_reason(entry, exchange) is not None

    def request_accepts(self, entry: Entry, exchange: Exchange) -> bool:
        control = exchange.api_request.control
        if control.no_cache:
            return False
        return control.max_age is None or self._clock() - entry.created <= control.max_age

    async def replay(
        self, exchange: Exchange, entry: Entry, match: Candidate | None = None, stale: Stale | None = None
    ) -> Answer:
        request, headers = exchange.api_request, [JSON]
        if request.stream:
            headers = [EVENTS, ("cache-control", "no-cache")]
        size = len(entry.request) + len(entry.response)
        body = await in_thread_if_large(size, partial(_body_for, request, entry))
        if not exchange.is_warming:
            self._store.record_hit(entry.id)
        now = self._clock()
        if stale is not None:
            self.stale_counts[stale] += 1
        exchange.hit = CacheHit(
            id=entry.id,
            key=entry.key,
            age=max(0.0, now - entry.created),
            ttl=entry.expires - now,
            prompt_tokens=entry.prompt_tokens,
            completion_tokens=entry.completion_tokens,
            stale=stale,
            match=match,
        )
        exchange.layer = "exact" if match is None else "semantic"
        exchange.status = 200
        exchange.first_byte = time.perf_counter()
        return Answer(200, headers, body)


def _body_for(request: ApiRequest, entry: Entry) -> bytes:
    response = response_for(request, entry)
    if not request.stream:
        return response_for_client(response)
    return b"".join(request.api.replay(as_object(loads(response)), request.body))


@contextmanager
def _logging_failures(exchange: Exchange) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        exchange.lookup_failed = True
        if isinstance(error, EmbedderError | RedactionFailed):
            _log.error("lookup failed, the request is forwarded: %s", error)
        # The store logs its own failure once for all requests.
        elif not isinstance(error, CacheStoreError):
            # An imported response may be invalid, and a user's verifier may fail.
            _log.exception("lookup failed, the request is forwarded")
