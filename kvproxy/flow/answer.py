"""The flow of a request: exact key, similar question, identical request under way, backend, store."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from kvproxy.apis.json import as_object, dumps, loads
from kvproxy.apis.request import ApiRequest
from kvproxy.backends.protocol import Backend
from kvproxy.errors import NotCached, Unkeyable, UpstreamBroken
from kvproxy.flow.flight.flights import Flight, Flights
from kvproxy.flow.flight.keep import Asked, FlightKeeper, Shelf
from kvproxy.flow.flight.source import EVENTS, JSON, Source, open_source
from kvproxy.flow.keys import CacheKey, cache_key
from kvproxy.flow.learning.observer import Observer
from kvproxy.flow.outcome import Answer, Forwarded, Match, Outcome
from kvproxy.flow.recording import trail
from kvproxy.flow.recording.spending import metered
from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError, EmbedderError
from kvproxy.index.lookup import Lookup
from kvproxy.index.response_cache import ResponseCache
from kvproxy.journal.draft import Draft
from kvproxy.journal.journal import Journal, NoJournal
from kvproxy.settings import CacheSettings

HOLD_SECONDS = 1.0
"""How long an answer that is no stream is held back after its head, so that Cache-Status can tell whether it is stored."""
_SLOW_BYTES = 64 * 1024
"""From here on a digest or a replay takes long enough to leave the event loop."""
_log = logging.getLogger("kvproxy")


class Answerer:
    """Answers requests from the caches or the backend.

    Args:
        backend: computes what is not cached.
        cache: stored responses, by exact key and by similar question.
        settings: what may be cached and for how long.
        clock: seconds since the epoch.
        observer: compares fresh answers with cached ones, None to learn nothing.
        journal: takes what becomes of each request.
    """

    def __init__(
        self,
        backend: Backend,
        cache: ResponseCache,
        settings: CacheSettings,
        clock: Callable[[], float] = time.time,
        observer: Observer | None = None,
        journal: Journal = NoJournal(),
    ) -> None:
        self.backend = backend
        self.cache = cache
        self.store = cache.store
        self.semantic = cache.semantic
        self.observer = observer
        self.journal = journal
        self.outcomes: Counter[str] = Counter()
        """Semantic lookups by what came of them."""
        self.flights = Flights()
        self.settings = settings
        self._clock = clock
        self._shelf = Shelf(self.cache, settings, backend.name, clock, observer)

    async def answer(self, request: ApiRequest) -> Answer:
        """The answer to a request. It leaves one record, when its answer is over.

        Raises:
            NotCached: the request accepts only a cached answer and there is none.
            Unkeyable: the request cannot be compared with others; of this, there is no record.
            KvproxyError: what the backend raised.
        """
        draft = Draft(request.api.name, request.request_id, request.tenant, request, self._clock())
        try:
            answer = await self._answer(request, draft)
        except Unkeyable:
            raise
        except BaseException as error:
            trail.failed(draft, error)
            self.journal.add(draft)
            raise
        # A stream's record is written when it is closed.
        if isinstance(answer.body, bytes):
            self.journal.add(draft)
        return answer

    async def _answer(self, request: ApiRequest, draft: Draft) -> Answer:
        control = request.control
        cacheable = self.settings.enabled and request.api.cacheable(request.body)
        key = await self.key(request)
        draft.key, draft.parts = key.exact, key.parts
        asked = Asked(request, key, cacheable, draft)
        if not cacheable or control.no_cache:
            draft.passed = "asked-fresh" if cacheable else "uncacheable"
        if cacheable and not control.no_cache:
            hit, near = await self._cached(asked)
            if hit is not None:
                if request.account is not None and draft.hit is not None:
                    request.account.cached(draft.hit.prompt_tokens + draft.hit.completion_tokens)
                return hit
            asked = replace(asked, near=near)
        if control.only_if_cached:
            raise NotCached(
                "no stored answer, and the request said only-if-cached: send it without to have it computed"
            )
        return await self._forward(asked)

    async def close(self) -> None:
        """End what is under way, and wait for the answers that are still being stored."""
        await self.flights.close()
        await self._shelf.settled()

    async def key(self, request: ApiRequest) -> CacheKey:
        """The names of a request; raises Unkeyable."""
        name, shared = self.backend.name, self.settings.shared
        if len(request.raw) > _SLOW_BYTES:
            return await asyncio.to_thread(cache_key, request, name, shared=shared)
        return cache_key(request, name, shared=shared)

    async def _cached(self, asked: Asked) -> tuple[Answer | None, Lookup | None]:
        """An answer from the cache; without one, the similar questions whose answers a fresh one may be compared with."""
        request, key = asked.request, asked.key
        try:
            entry = await self.cache.find(key.exact)
            asked.draft.looked = time.perf_counter()
            if entry is not None and self._young(entry, request):
                return await self._hit(asked, entry, None), None
            asked.draft.late = entry is not None
            if self.semantic is None or key.text is None or not await self.cache.compares(key.text):
                return None, None
            # Who takes no other answer than a cached one has nothing else to wait for.
            seconds = None if request.control.only_if_cached else self.settings.budget
            lookup = await self.semantic.lookup(key.namespace, key.text, limits=request.control.limits, seconds=seconds)
            asked.draft.judged, asked.draft.lookup = time.perf_counter(), lookup
            self.outcomes[lookup.outcome] += 1
            if lookup.entry is None or self.settings.shadow or not self._young(lookup.entry, request):
                return None, lookup
            if self.semantic.learning is not None:
                self.semantic.learning.served(lookup)
            return await self._hit(asked, lookup.entry, _match(lookup)), None
        except CacheStoreError:
            # Without its cache a proxy is slower, not broken. The store has said so, once for all requests.
            pass
        except EmbedderError as error:
            _log.error("lookup failed, the request is forwarded: %s", error)
        except Exception:
            # An imported answer that is none, a user's verifier that fails.
            _log.exception("lookup failed, the request is forwarded")
        asked.draft.lost = True
        return None, None

    def _young(self, entry: Entry, request: ApiRequest) -> bool:
        oldest = request.control.max_age
        return oldest is None or self._clock() - entry.created <= oldest

    async def _hit(self, asked: Asked, entry: Entry, match: Match | None) -> Answer:
        request, headers, body = asked.request, [JSON], entry.response
        if request.stream:
            headers = [EVENTS, ("cache-control", "no-cache")]
            if len(body) > _SLOW_BYTES:
                body = await asyncio.to_thread(_replayed, request, entry)
            else:
                body = _replayed(request, entry)
        self.store.touch(entry.id)
        now = self._clock()
        outcome = Outcome(
            "exact" if match is None else "semantic",
            entry=entry.id,
            age=max(0.0, now - entry.created),
            ttl=max(0.0, entry.expires - now),
            match=match,
        )
        trail.hit(asked.draft, outcome, entry)
        return Answer(200, headers, body, outcome)

    async def _forward(self, asked: Asked) -> Answer:
        request, control = asked.request, asked.request.control
        keep = asked.cacheable and not control.no_store and self._shelf.lifetime(request) > 0
        # A request that wants a fresh or an unstored answer flies alone. One never joins another tenant's flight:
        # errors and cookies belong to who asked, even where answers are shared.
        alone = control.no_cache or not keep
        form = (request.stream, dumps(request.body.get("stream_options")))
        flight, collapsed = self.flights.board(
            (asked.key.exact, request.tenant, form, object() if alone else None),
            lambda: Flight(lambda: self._open(request), FlightKeeper(self._shelf, asked, keep=keep)),
        )
        try:
            source = await flight.head()
            whole = not source.streams and await flight.settle(HOLD_SECONDS)
            if flight.error is not None and not isinstance(flight.error, UpstreamBroken):
                raise flight.error
            outcome = Outcome(
                "forward",
                entry=flight.entry,
                forwarded=_why(asked, alone=alone),
                skipped=asked.near is not None and asked.near.skipped,
                stored=flight.entry is not None,
                collapsed=collapsed,
                status=source.status,
                prefix=source.prefix,
            )
            trail.forwarded(asked.draft, outcome, flight)
            if not whole:
                return Answer(
                    source.status, source.headers, flight.chunks(), outcome, lambda: self._close(asked, flight)
                )
            body = await flight.body()
        except BaseException:
            flight.leave()
            raise
        flight.leave()
        self._ended(asked, flight)
        return Answer(source.status, source.headers, body, outcome)

    def _close(self, asked: Asked, flight: Flight) -> None:
        """A stream was read to its end, or its client left."""
        self._ended(asked, flight)
        flight.leave()
        self.journal.add(asked.draft)

    def _ended(self, asked: Asked, flight: Flight) -> None:
        trail.ended(asked.draft, flight, self._clock() + self._shelf.lifetime(asked.request))

    async def _open(self, request: ApiRequest) -> Source:
        limit = self.settings.max_response_bytes
        if request.account is not None:
            return await metered(request, request.account, self.backend, limit)
        return open_source(request, await self.backend.send(request), limit)


def _why(asked: Asked, *, alone: bool) -> Forwarded:
    if not asked.cacheable:
        return "bypass"
    return "request" if alone else "uri-miss"


def _match(lookup: Lookup) -> Match:
    chosen = lookup.chosen
    assert chosen is not None
    return Match(chosen.similarity, None if chosen.score == chosen.similarity else chosen.score, chosen.error)


def _replayed(request: ApiRequest, entry: Entry) -> bytes:
    return b"".join(request.api.replay(as_object(loads(entry.response)), request.body))
