"""The flow of a request: exact key, similar question, identical request under way, backend, store."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from kvproxy.apis.request import ApiRequest, asks_for_sample
from kvproxy.backends.protocol import Backend
from kvproxy.errors import DeadlineExceeded, KvproxyError, NotCached, UpstreamBroken
from kvproxy.flow import trail
from kvproxy.flow.diagnostics import Diagnostics, diagnosed
from kvproxy.flow.keys import CacheKey, cache_key
from kvproxy.flow.learn import Observer
from kvproxy.flow.lookup import Recall
from kvproxy.flow.outcome import Answer, Forwarded, Outcome
from kvproxy.flow.revalidate import Renewals
from kvproxy.flow.single_flight import Boarding, Flight
from kvproxy.flow.store_response import Asked, Shelf
from kvproxy.index.entry import Entry, Freshness
from kvproxy.index.response_cache import ResponseCache
from kvproxy.journal.draft import Draft
from kvproxy.journal.journal import Journal, NoJournal
from kvproxy.settings import CacheSettings

HOLD_SECONDS = 1.0
"""How long an answer that is no stream is held back after its head, so that Cache-Status can tell which entry will keep it."""
_SLOW_BYTES = 64 * 1024
"""From here on a digest takes long enough to leave the event loop."""

Watched = Callable[[Coroutine[Any, Any, Answer]], Awaitable[Answer]]
"""Awaits some work for a client, and ends it when the client leaves."""


async def _unwatched(work: Coroutine[Any, Any, Answer]) -> Answer:
    return await work


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
        self.settings = settings
        self._clock = clock
        self._recall = Recall(cache, settings, clock)
        self._shelf = Shelf(self.cache, settings, backend.name, clock, observer, journal)
        self._boarding = Boarding(backend, self._shelf)
        self.flights = self._boarding.flights
        self._renewals = Renewals(self._boarding.board, self.key, journal, clock)
        # What an upstream says reaches the client as it is.
        self._diagnostics = Diagnostics() if backend.forwarder is None else None

    @property
    def outcomes(self) -> Counter[str]:
        """Semantic lookups by what came of them."""
        return self._recall.outcomes

    def freshness(self, entry: Entry) -> Freshness:
        """Whether an entry may be served now."""
        return entry.freshness(self._clock())

    @property
    def stale(self) -> dict[str, int]:
        """Answers that were given past their time, by why; and renewals, by what came of them."""
        return dict(self._recall.stale) | self._renewals.counts

    async def answer(self, request: ApiRequest, watched: Watched = _unwatched) -> Answer:
        """The answer to a request, with what it asks of the reuse of its prompt; see `_answer`."""
        answer = await self._answer(request, watched)
        if self._diagnostics is None or answer.status != 200 or not self._diagnostics.wants(request):
            return answer
        return await diagnosed(self._diagnostics, request, answer)

    async def _answer(self, request: ApiRequest, watched: Watched) -> Answer:
        """The answer to a request. It leaves one record, when its answer is over.

        Args:
            watched: awaits what takes its time, and ends it when the client leaves. An equal answer that is stored in a file is
                there at once.

        Raises:
            NotCached: the request accepts only a cached answer and there is none.
            Unkeyable: the request cannot be compared with others; of this, there is no record.
            KvproxyError: what the backend raised.
        """
        sampled = self._wants_sample(request)
        if sampled:
            request = replace(request, control=replace(request.control, no_cache=True))
        draft = Draft(request.api.name, request.request_id, request.tenant, request, self._clock())
        cacheable = self.settings.enabled and request.api.cacheable(request.body)
        key = await self.key(request)
        draft.key, draft.parts = key.exact, key.parts
        asked = Asked(request, key, cacheable, draft)
        if not cacheable or request.control.no_cache:
            fresh = "asked-sample" if sampled else "asked-fresh"
            draft.passed = fresh if cacheable else "uncacheable"
            return await watched(self._recorded(draft, self._beyond(asked)))
        hit, spare = await self._recall.equal(asked)
        if hit is not None:
            if request.account is not None:
                return await self._recorded(draft, self._paid(asked, hit))
            self.journal.add(draft)
            return hit
        if spare is not None:
            asked = replace(asked, spare=spare)
        return await watched(self._recorded(draft, self._beyond(asked)))

    def _wants_sample(self, request: ApiRequest) -> bool:
        """Whether a request asks for a random sample, which a stored response is not, and does not accept a stored one."""
        control = request.control
        if (control.ruled.sampled or self.settings.sampled) == "replay":
            return False
        accepts = control.only_if_cached or control.max_age is not None
        return not accepts and asks_for_sample(request.body)

    async def _recorded(self, draft: Draft, work: Coroutine[Any, Any, Answer]) -> Answer:
        """An answer, or the error in its place, with its record."""
        try:
            answer = await work
        except BaseException as error:
            trail.failed(draft, error)
            self.journal.add(draft)
            raise
        # A stream's record is written when it is closed.
        if isinstance(answer.body, bytes):
            self.journal.add(draft)
        return answer

    async def _beyond(self, asked: Asked) -> Answer:
        """The answer to a request that no equal one is stored for."""
        control = asked.request.control
        if asked.draft.passed is None:
            hit, near = await self._recall.once_more(asked), None
            if hit is None:
                hit, near = await self._recall.similar(asked)
            if hit is not None:
                return await self._given(asked, hit)
            asked = replace(asked, near=near)
        if control.only_if_cached:
            raise NotCached("no stored answer, and the request said only-if-cached: send it without to have one")
        # Where it is known that nobody can answer, nobody is asked.
        if self.backend.failure() is not None and (hit := await self._recall.in_stead(asked)) is not None:
            return await self._paid(asked, hit)
        try:
            return await self._computed(asked)
        except KvproxyError as error:
            if error.status < 500 or (hit := await self._recall.in_stead(asked)) is None:
                raise
            return await self._paid(asked, hit)

    async def _computed(self, asked: Asked) -> Answer:
        """A fresh answer; where a stored one could stand in, within the time that the client gives."""
        try:
            async with asyncio.timeout(self._recall.patience(asked)):
                return await self._forward(asked)
        except TimeoutError:
            raise DeadlineExceeded("no fresh answer came within x-kvproxy-timeout") from None

    async def _given(self, asked: Asked, hit: Answer) -> Answer:
        """A stored answer, which is computed anew where it is past its time."""
        given, entry = await self._paid(asked, hit), asked.draft.hit
        if hit.outcome.stale is not None and entry is not None:
            self._renewals.begin(asked, entry)
        return given

    async def _paid(self, asked: Asked, hit: Answer) -> Answer:
        """A stored answer, where the client may have one more; raises TooMany."""
        account, entry = asked.request.account, asked.draft.hit
        if account is not None and entry is not None:
            account.cached(entry.prompt_tokens + entry.completion_tokens)
        return hit

    async def close(self) -> None:
        """End what is under way, and wait for the answers that are still being stored."""
        await self._renewals.close()
        await self.flights.close()
        await self.cache.coming.settled()
        if self.semantic is not None:
            await self.semantic.behind.stop()

    async def key(self, request: ApiRequest) -> CacheKey:
        """The names of a request; raises Unkeyable."""
        name, shared = self.backend.name, self.settings.shared
        if len(request.raw) > _SLOW_BYTES:
            return await asyncio.to_thread(cache_key, request, name, shared=shared)
        return cache_key(request, name, shared=shared)

    async def _forward(self, asked: Asked) -> Answer:
        alone, confirm = self._boarding.alone(asked), asked.request.control.confirm
        flight, collapsed = self._boarding.board(asked)
        try:
            source = await flight.head()
            whole = not source.streams and await flight.settle(None if confirm else HOLD_SECONDS)
            if flight.error is not None and not isinstance(flight.error, UpstreamBroken):
                raise flight.error
            failed = source.status >= 500 or flight.error is not None
            if failed and (hit := await self._recall.in_stead(asked)) is not None:
                hit = await self._paid(asked, hit)
                flight.leave()
                return hit
            stored = whole and confirm and await flight.stored()
            outcome = Outcome(
                "forward",
                entry=flight.entry,
                forwarded=_why(asked, alone=alone),
                skipped=asked.near is not None and asked.near.skipped,
                stored=stored,
                collapsed=collapsed,
                status=source.status,
                prefix=source.prefix,
            )
            trail.forwarded(asked.draft, outcome, flight)
            if not whole:
                chunks = flight.chunks(confirm=confirm)
                return Answer(source.status, source.headers, chunks, outcome, lambda: self._close(asked, flight))
            body = await flight.body()
        except BaseException:
            flight.leave()
            raise
        flight.leave()
        trail.ended(asked.draft, flight)
        return Answer(source.status, source.headers, body, outcome)

    def _close(self, asked: Asked, flight: Flight) -> None:
        """A stream was read to its end, or its client left."""
        trail.ended(asked.draft, flight)
        flight.leave()
        self.journal.add(asked.draft)


def _why(asked: Asked, *, alone: bool) -> Forwarded:
    if not asked.cacheable:
        return "bypass"
    return "request" if alone else "uri-miss"
