"""Decides which stored responses a request accepts, and replays them."""

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
from kvproxy.flow.layers.layer import Prediction
from kvproxy.index.entry import Entry
from kvproxy.index.entry_redaction import RedactionFailed
from kvproxy.index.errors import CacheStoreError, EmbedderError
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.search.lookup_result import FRESH, SERVABLE_AFTER_ERROR, Candidate
from kvproxy.settings import CacheSettings

_log = logging.getLogger("kvproxy")


class CacheLookup:
    """Semantic lookups, and the rules by which a request accepts a stored response."""

    def __init__(self, cache: ResponseCache, settings: CacheSettings, clock: Callable[[], float]) -> None:
        self._cache = cache
        self._store = cache.store
        self._semantic = cache.semantic
        self._settings = settings
        self._clock = clock
        self.lookup_counts: Counter[str] = Counter()
        self.stale_counts: Counter[str] = Counter()

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

    async def serve_similar(self, exchange: Exchange, *, failed: bool = False) -> Answer | None:
        """Serve the response to a similar question; if the backend has `failed`, also in its stale-if-error period."""
        is_first = exchange.lookup is None
        with logging_failures(exchange):
            hit, lookup = await self._find_similar(exchange, failed=failed, explore=not failed), exchange.lookup
            if lookup is not None and is_first and not exchange.is_warming:
                is_refused = lookup.entry is not None and hit is None
                self.lookup_counts["accepted but not served" if is_refused else lookup.outcome] += 1
            if lookup is None or hit is None or hit.entry is None or self._settings.shadow:
                return None
            if self._semantic is not None and self._semantic.learning is not None and not exchange.is_warming:
                self._semantic.learning.record_served(lookup)
            return await self.replay(exchange, hit.entry, hit.match, hit.stale)
        return None

    async def predict_similar(self, exchange: Exchange, *, failed: bool = False) -> Prediction | None:
        hit = await self._find_similar(exchange, failed=failed, explore=False)
        return None if self._settings.shadow else hit

    async def _find_similar(self, exchange: Exchange, *, failed: bool, explore: bool) -> Prediction | None:
        request, key = exchange.api_request, exchange.cache_key
        if exchange.lookup_failed or request.control.rule.semantic is False:
            return None
        if self._semantic is None or key.text is None or not await self._cache.is_unchanged_by_redaction(key.text):
            return None
        is_limited = explore and not failed and not request.control.only_if_cached
        lookup = await self._semantic.lookup(
            key.namespace,
            key.text,
            limits=request.control.limits,
            seconds=self._settings.lookup_timeout if is_limited else None,
            explore=explore,
            allowed_freshness=SERVABLE_AFTER_ERROR if failed else FRESH,
            policy=request.control.rule.policy,
        )
        exchange.semantic_done, exchange.lookup = time.perf_counter(), lookup
        entry = lookup.entry
        if entry is None:
            return None
        if entry.expires > self._clock():
            accepted, stale = self.accepts_age(entry, exchange), None
        else:
            stale = self.stale_reason(entry, exchange, failed=failed)
            accepted = stale is not None
        return Prediction("semantic", entry, lookup.chosen, stale) if accepted else None

    def accepts_age(self, entry: Entry, exchange: Exchange) -> bool:
        """Whether the request's directives accept a fresh response of this age."""
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
def logging_failures(exchange: Exchange) -> Iterator[None]:
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
