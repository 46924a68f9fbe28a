"""The response cache for asyncio."""

import asyncio
import logging
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from kvproxy.index.entry import LIBRARY_ENDPOINT, Entry, library_digest
from kvproxy.index.errors import CacheStoreError, EmbedderError, PolicyError
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.store import AnswerComputation, EntryFilter
from kvproxy.library.arguments import (
    BATCH,
    Seconds,
    check_memoize,
    check_question,
    check_tag,
    check_texts,
    check_type,
    checked_options,
    checked_questions,
    checked_tags,
    computed_answer,
    pair_batches,
    positive_seconds,
)
from kvproxy.library.cache_stats import CacheStats, GetStats, collect_stats
from kvproxy.library.cached_answer import CachedAnswer, answer_of, new_entry
from kvproxy.library.lookup_explanation import LookupExplanation, explain_lookup
from kvproxy.library.maintenance import Maintenance
from kvproxy.library.memoized_function import memoize_coroutine
from kvproxy.library.removals import Removals
from kvproxy.library.running_calls import CLOSED, FORKED, RunningCalls, counted_call
from kvproxy.library.single_flight import Flight, SingleFlight, returning_computed_answer
from kvproxy.settings.cache import CacheSettings

F = TypeVar("F", bound=Callable[[str], Awaitable[str]])
_log = logging.getLogger("kvproxy")
_CLOSING_SECONDS = 5.0


class AsyncCache:
    """The same as `Cache`, for asyncio. Open it with `open_async_cache`, and use it in one event loop.

    Methods raise CacheStoreError or EmbedderError, TypeError or ValueError for invalid arguments, and RuntimeError after
    `close` and in a forked process.
    """

    def __init__(
        self,
        cache: ResponseCache,
        settings: CacheSettings = CacheSettings(),
        *,
        clock: Callable[[], float] = time.time,
        namespace_ttls: Mapping[str, float] = MappingProxyType({}),
        maintenance: Maintenance | None = None,
    ) -> None:
        self._cache = cache
        self._settings = settings
        self._clock = clock
        self._namespace_ttls = namespace_ttls
        self._maintenance = maintenance
        self._gets = Counter[str]()
        self._lookups = Counter[str]()
        self._removals = Removals()
        cache.store.removal_listeners.append(self._removals.add)
        self.flights = SingleFlight(cache)
        self.running_calls = RunningCalls()
        self._pid = os.getpid()
        self._is_closed = False
        # Without the setting, a call of a program waits as long as the models need.
        self._lookup_timeout = settings.lookup_timeout if "lookup_timeout" in settings.model_fields_set else None

    @counted_call
    async def get(self, question: str, namespace: str = "") -> CachedAnswer | None:
        """Return the stored answer to an equal question, or else to a similar question; None without one."""
        check_question(question, namespace)
        return await self._get(question, namespace)

    async def _get(self, question: str, namespace: str) -> CachedAnswer | None:
        entry, similarity = await self._find_equal(question, namespace), None
        if entry is None:
            entry, similarity = await self._find_similar(question, namespace)
        if entry is not None:
            await self._record_hit(entry)
        self._gets["miss" if entry is None else "exact" if similarity is None else "semantic"] += 1
        return None if entry is None else answer_of(entry, similarity)

    async def _record_hit(self, entry: Entry) -> None:
        pending = self._cache.pending_writes.get(entry.key)
        if pending is not None:
            # The store counts no hit of an entry that it does not contain yet.
            await pending.wait_until_stored()
        self._cache.store.record_hit(entry.id)

    @counted_call
    async def get_many(self, questions: Sequence[str], namespace: str = "") -> list[CachedAnswer | None]:
        """Return what `get` returns for each question. All questions without an equal one are embedded together.

        If the embedder fails, they are misses.
        """
        questions = checked_questions(questions, namespace)
        found: list[CachedAnswer | None] = []
        for start in range(0, len(questions), BATCH):
            batch = questions[start : start + BATCH]
            new = [text for text in dict.fromkeys(batch) if await self._find_equal(text, namespace) is None]
            failure = await self._embed(new)
            found += [await self._get_or_miss(question, namespace, failure) for question in batch]
        return found

    async def _embed(self, questions: Sequence[str]) -> EmbedderError | None:
        """Embed questions together; return the error of an embedder that fails for all."""
        try:
            if self._cache.semantic is not None:
                await self._cache.semantic.embed_many(questions)
        except EmbedderError as error:
            _log.warning("questions are not embedded: %s", error)
            return error
        return None

    async def _get_or_miss(self, question: str, namespace: str, failure: EmbedderError | None) -> CachedAnswer | None:
        """Return what `get` returns; None if the embedder fails. `failure` is its error for all questions, if any."""
        if failure is None or await self._find_equal(question, namespace) is not None:
            try:
                return await self._get(question, namespace)
            except EmbedderError as error:
                _log.warning("the lookup is a miss: %s", error)
        else:
            self._lookups["failed"] += 1
        self._gets["miss"] += 1
        return None

    async def get_or_set(
        self,
        question: str,
        compute: Callable[[str], Awaitable[str]],
        namespace: str = "",
        *,
        ttl: Seconds | None = None,
        tags: Sequence[str] = (),
    ) -> str:
        """Return the stored answer, see `get`, or else compute and store it.

        Calls of all tasks and threads for an equal question share one computation, and its exception. If the task that
        computes is cancelled, a waiting one computes again. If the store, the embedder, or the policy fails, the answer is
        computed. Raises RuntimeError if `compute` calls this for its own question.
        """
        self.check_usable()
        check_question(question, namespace)
        ttl, tags = checked_options(ttl, tags)
        key = library_digest(namespace, question)
        while (running := self.flights.join(key)) is not None:
            if await self.flights.is_invalidated(running):
                self.flights.detach(key, running)
                continue
            with self.flights.share():
                return await asyncio.wrap_future(running.answer)
        with self.flights.lead(key) as flight:
            hit = await self.get_unless_failed(question, namespace, tags, flight)
            answer = await computed_answer(compute, question) if hit is None else hit.answer
            if hit is None:
                with returning_computed_answer():
                    await self.store_answer(question, answer, namespace, ttl, tags, flight.computation)
            flight.answer.set_result(answer)
        return answer

    async def get_unless_failed(
        self, question: str, namespace: str, tags: tuple[str, ...], flight: Flight
    ) -> CachedAnswer | None:
        """Begin a computation, and return what `get` returns; None if it fails, because the answer can be computed."""
        key, digest = library_digest(namespace, question), library_digest(namespace)
        flight.computation = await self._cache.begin_computation(key, digest, tags)
        try:
            return await self.get(question, namespace)
        except (CacheStoreError, EmbedderError, RuntimeError) as error:
            _log.warning("the lookup failed, so the answer is computed: %s", error)
            self._gets["miss"] += 1
            return None

    def memoize(self, namespace: str = "", *, ttl: Seconds | None = None, tags: Sequence[str] = ()) -> Callable[[F], F]:
        """Return a decorator for a function that computes the answer to a question, see `get_or_set`."""
        check_memoize(namespace)
        ttl, tags = checked_options(ttl, tags)
        return partial(memoize_coroutine, partial(self.get_or_set, namespace=namespace, ttl=ttl, tags=tags))

    @counted_call
    async def contains(self, question: str, namespace: str = "") -> bool:
        """Return whether the answer to an equal question is stored, without counting a lookup."""
        check_question(question, namespace)
        return await self._find_equal(question, namespace) is not None

    @counted_call
    async def explain(self, question: str, namespace: str = "") -> LookupExplanation:
        """Return what `get` would return, and why, without counting a lookup."""
        check_question(question, namespace)
        removal = self._removals.reason(library_digest(namespace, question))
        found = await explain_lookup(self._cache, question, namespace, self._clock(), self._lookup_timeout, removal)
        if found.reason == "hit-semantic" and self._settings.shadow:
            return replace(found, reason="shadow", sentence=f"{found.sentence} It is not served in shadow mode.")
        return found

    async def set(
        self,
        question: str,
        answer: str,
        namespace: str = "",
        *,
        ttl: Seconds | None = None,
        tags: Sequence[str] = (),
    ) -> bool:
        """Store an answer durably for `ttl`; return False if the answer is too large, or contains text to redact."""
        return await self.store_answer(question, answer, namespace, ttl, tags)

    @counted_call
    async def store_answer(
        self,
        question: str,
        answer: str,
        namespace: str,
        ttl: Seconds | None,
        tags: Sequence[str],
        computation: AnswerComputation | None = None,
    ) -> bool:
        """Store an answer, see `set`, unless an invalidation covers its computation."""
        entry = self._entry(question, answer, namespace, ttl, tags)
        return self._is_storable(entry) and await self._cache.insert(entry, computation)

    async def set_many(
        self,
        answers: Mapping[str, str] | Iterable[tuple[str, str]],
        namespace: str = "",
        *,
        ttl: Seconds | None = None,
        tags: Sequence[str] = (),
    ) -> int:
        """Store the answer to each question, see `set`, with few commits; return how many of them are stored at the end.

        A mapping or sequence is checked first; of another iterable, each batch of 1,000 pairs is stored before the next one is
        read. Beyond the capacity, later answers evict earlier ones, which do not count.
        """
        self.check_usable()
        stored, tags = list[str](), checked_tags(tags)
        for batch in pair_batches(answers):
            stored += await self.store_batch(batch, namespace, ttl=ttl, tags=tags)
        return await self.count_stored(stored)

    @counted_call
    async def store_batch(
        self, pairs: Sequence[tuple[str, str]], namespace: str = "", *, ttl: Seconds | None, tags: Sequence[str]
    ) -> list[str]:
        """Store pairs of a question and its answer; return the ids of the answers. The last answer to a question counts."""
        entries = [self._entry(question, answer, namespace, ttl, tags) for question, answer in dict(pairs).items()]
        entries = [entry for entry in entries if self._is_storable(entry)]
        failure = await self._embed([entry.prompt for entry in entries])
        await self._cache.insert_many(entries, deferred=failure is not None)
        return [entry.id for entry in entries]

    @counted_call
    async def count_stored(self, ids: Sequence[str]) -> int:
        """Return how many of the ids belong to a stored answer."""
        return await asyncio.to_thread(self._cache.store.count_stored, ids)

    @counted_call
    async def delete(self, question: str, namespace: str = "") -> bool:
        """Remove the answer to an equal question, also an expired one; return whether it existed."""
        check_question(question, namespace)
        key = library_digest(namespace, question)
        pending = self._cache.pending_writes.get(key)
        if pending is not None:
            await pending.wait_until_stored()
        removed = await asyncio.to_thread(self._cache.store.invalidate, EntryFilter(key=key))
        return await self._cache.remove(removed) > 0

    @counted_call
    async def delete_tag(self, tag: str, namespace: str | None = None) -> int:
        """Remove the answers with a tag, in one namespace or (None) in all; return their number, without expired ones."""
        check_texts(tag=tag)
        check_tag(tag)
        return await self._remove_all(replace(_filter(namespace), tag=tag))

    @counted_call
    async def clear(self, namespace: str | None = None) -> int:
        """Remove all answers of one namespace or (None) of all; return their number, without expired ones."""
        return await self._remove_all(_filter(namespace))

    async def count(self, namespace: str | None = None) -> int:
        """Return the number of answers that have not expired, in one namespace or (None) in all."""
        return len(await self.ids(namespace))

    async def answers(self, namespace: str | None = None) -> AsyncIterator[CachedAnswer]:
        """Yield the stored answers of one namespace or (None) of all, in no particular order."""
        for id in await self.ids(namespace):
            if (answer := await self.answer(id)) is not None:
                yield answer

    @counted_call
    async def ids(self, namespace: str | None = None) -> list[str]:
        """Return the ids of the answers that have not expired, in one namespace or (None) in all."""
        where = replace(_filter(namespace), expires_after=self._clock())
        return await asyncio.to_thread(self._cache.store.ids, where)

    @counted_call
    async def answer(self, id: str) -> CachedAnswer | None:
        """Return the answer with an id, without counting a lookup; None if it is no longer stored."""
        check_texts(id=id)
        entry = await asyncio.to_thread(self._cache.store.get, id)
        is_served = entry is not None and entry.endpoint == LIBRARY_ENDPOINT and entry.expires > self._clock()
        return answer_of(entry) if entry is not None and is_served else None

    @counted_call
    async def feedback(self, answer: CachedAnswer, right: bool, question: str | None = None) -> None:
        """Report whether an answer was right. A wrong answer is served for equal questions only."""
        check_type("answer", answer, CachedAnswer)
        check_type("right", right, bool, ": write True or False")
        if question is not None:
            check_texts(question=question)
        if self._cache.semantic is None:
            raise ValueError("semantic matching is off: there is nothing to reject or approve")
        entry = await asyncio.to_thread(self._cache.store.get, answer.id)
        if entry is None:
            raise ValueError(f"the answer to {answer.question[:80]!r} is no longer stored")
        await self._cache.semantic.feedback(entry, right, question)

    @counted_call
    async def stats(self) -> CacheStats:
        """Return the figures of `kvproxy cache stats --json`, and `gets`: results of `get`, and shared computations."""
        gets: GetStats = {
            "exact": self._gets["exact"],
            "semantic": self._gets["semantic"],
            "miss": self._gets["miss"],
            "shared": self.flights.num_shared,
        }
        collect = partial(collect_stats, self._cache, gets, dict(self._lookups), is_shadow=self._settings.shadow)
        return await asyncio.to_thread(collect)

    async def close(self) -> None:
        """Store the counts of hits, and close the store. A second call does nothing.

        Running calls end first, but for `compute`. After five seconds, lookups that have not begun raise RuntimeError.
        """
        if self._is_closed or os.getpid() != self._pid:
            # A child must leave the connections of its parent open.
            self._is_closed = True
            return
        self._is_closed = True
        try:
            await self.running_calls.wait_until_ended(_CLOSING_SECONDS)
        finally:
            if self._maintenance is not None:
                await asyncio.to_thread(self._maintenance.stop)
            await asyncio.to_thread(self._cache.close)

    def __aiter__(self) -> AsyncIterator[CachedAnswer]:
        return self.answers()

    async def __aenter__(self) -> "AsyncCache":
        self.check_usable()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    if not TYPE_CHECKING:  # Type checkers refuse these uses.

        def __contains__(self, question: object) -> bool:
            raise TypeError("this cache is for asyncio: write `await cache.contains(question)`")

        def __len__(self) -> int:
            raise TypeError("this cache is for asyncio: write `await cache.count()`")

        def __bool__(self) -> bool:
            return True

        def __await__(self) -> object:
            raise TypeError("open_async_cache needs no await: write `async with open_async_cache(...) as cache`")

    def __repr__(self) -> str:
        semantic = self._cache.semantic
        matching = "exact hits only" if semantic is None else f"policy {semantic.policy.name}"
        return f"<{type(self).__name__} {self._cache.store.name}, {matching}{', closed' if self._is_closed else ''}>"

    def check_usable(self) -> None:
        """Raise RuntimeError if the cache is closed, or was opened by the parent of this process."""
        if self._is_closed:
            raise RuntimeError(CLOSED)
        if os.getpid() != self._pid:
            raise RuntimeError(FORKED)

    async def _find_equal(self, question: str, namespace: str) -> Entry | None:
        entry = await self._cache.find(library_digest(namespace, question))
        return entry if entry is not None and entry.expires > self._clock() else None

    async def _find_similar(self, question: str, namespace: str) -> tuple[Entry | None, float | None]:
        """Return the stored answer to serve for a similar question, and the cosine of both questions."""
        semantic = self._cache.semantic
        if semantic is None or not await self._cache.is_unchanged_by_redaction(question):
            return None, None
        try:
            lookup = await semantic.lookup(
                library_digest(namespace), question, seconds=self._lookup_timeout, namespace_name=namespace
            )
        except PolicyError as error:
            _log.warning("the lookup is a miss: %s", error, exc_info=_log.isEnabledFor(logging.DEBUG))
            self._lookups["failed"] += 1
            return None, None
        except (CacheStoreError, EmbedderError):
            self._lookups["failed"] += 1
            raise
        if lookup.entry is not None and self._settings.shadow:
            self._lookups["shadow"] += 1
            return None, None
        self._lookups[lookup.outcome] += 1
        if lookup.entry is not None and semantic.learning is not None:
            semantic.learning.record_served(lookup)
        return lookup.entry, lookup.similarity

    def _entry(self, question: str, answer: str, namespace: str, ttl: Seconds | None, tags: Sequence[str]) -> Entry:
        check_question(question, namespace)
        check_texts(answer=answer)
        settings, now = self._settings, self._clock()
        lifetime = (
            positive_seconds("ttl", ttl) if ttl is not None else self._namespace_ttls.get(namespace, settings.ttl)
        )
        expires = now + min(lifetime, math.inf if settings.max_ttl is None else settings.max_ttl)
        return new_entry(question, answer, namespace, checked_tags(tags), now, expires)

    def _is_storable(self, entry: Entry) -> bool:
        return len(entry.response) <= self._settings.max_response_bytes

    async def _remove_all(self, where: EntryFilter) -> int:
        """Remove answers, and return their number, without expired ones."""
        store, removed = self._cache.store, await asyncio.to_thread(self._cache.store.invalidate, where)
        fresh = await asyncio.to_thread(store.ids, replace(where, expires_after=self._clock()))
        count = await self._cache.remove(fresh)
        await self._cache.remove(removed)
        return count


def _filter(namespace: str | None) -> EntryFilter:
    if namespace is None:
        return EntryFilter(endpoint=LIBRARY_ENDPOINT)
    check_texts(namespace=namespace)
    return EntryFilter(endpoint=LIBRARY_ENDPOINT, namespace=library_digest(namespace))
