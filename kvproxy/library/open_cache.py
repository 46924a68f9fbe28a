"""Opens a cache for threads or for asyncio."""

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from kvproxy.index.entry import library_digest
from kvproxy.index.models.embedder import Embedder
from kvproxy.index.policies.guards import Guard
from kvproxy.index.policies.policy import Policy, PolicyName
from kvproxy.index.search.decider import MAX_REFUSALS
from kvproxy.library.arguments import (
    Seconds,
    check_computed,
    check_limit,
    check_memoize,
    check_not_async,
    check_question,
    check_settings,
    check_type,
    checked_embedder,
    checked_guards,
    checked_lifetimes,
    checked_location,
    checked_options,
    checked_tags,
    pair_batches,
    with_policy,
)
from kvproxy.library.async_cache import AsyncCache
from kvproxy.library.cache_stats import CacheStats
from kvproxy.library.cached_answer import CachedAnswer
from kvproxy.library.configured_cache import open_response_cache
from kvproxy.library.lookup_explanation import LookupExplanation
from kvproxy.library.maintenance import Maintenance
from kvproxy.library.memoized_function import memoize_function
from kvproxy.library.running_calls import CLOSED
from kvproxy.library.single_flight import returning_computed_answer
from kvproxy.settings.cache import CacheSettings
from kvproxy.settings.privacy import EncryptionSettings, RedactionSettings

T = TypeVar("T")
F = TypeVar("F", bound=Callable[[str], str])
_EXITING = "the main thread has ended, and Python's thread pools with it: let it wait for the other threads (`join`)"


class Cache:
    """Stored answers with exact and semantic lookups.

    Open it with `open_cache`. Works in threads and in running event loops. Methods raise CacheStoreError or
    EmbedderError, TypeError or ValueError for invalid arguments, and RuntimeError after `close` and in a forked process.

    `len(cache)` and iteration cover the answers of all namespaces; `question in cache` means the namespace "".
    """

    def __init__(self, cache: AsyncCache) -> None:
        self._cache = cache
        self._closing = threading.Lock()
        self._starting = threading.Lock()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run_until_stopped, args=[self._loop], name="kvproxy-cache", daemon=True)
        self._thread.start()
        # At the exit of the process, `Maintenance` stores the counts.
        weakref.finalize(self, _close_unused, cache, self._loop, self._thread).atexit = False

    def get(self, question: str, namespace: str = "") -> CachedAnswer | None:
        """Return the stored answer to an equal question, or else to a similar question; None without one.

        `namespace` contains everything else that changes the answer: the model, the system prompt, the user.
        """
        return self._run(self._cache.get(question, namespace))

    def get_many(self, questions: Sequence[str], namespace: str = "") -> list[CachedAnswer | None]:
        """Return what `get` returns for each question. All questions without an equal one are embedded together.

        If the embedder fails, they are misses.
        """
        return self._run(self._cache.get_many(questions, namespace))

    def get_or_set(
        self,
        question: str,
        compute: Callable[[str], str],
        namespace: str = "",
        *,
        ttl: Seconds | None = None,
        tags: Sequence[str] = (),
    ) -> str:
        """Return the stored answer, see `get`, or else call `compute` with the question, and store its result.

        Calls of all threads for an equal question share one computation, and its exception. If the store, the embedder,
        or the policy fails, the answer is computed. Raises RuntimeError if `compute` calls this for its own question.
        """
        self._cache.check_usable()
        check_question(question, namespace)
        check_not_async(compute)
        ttl, tags = checked_options(ttl, tags)
        key, flights = library_digest(namespace, question), self._cache.flights
        while (running := flights.join(key)) is not None:
            if self._run(flights.is_invalidated(running)):
                flights.detach(key, running)
                continue
            with flights.share():
                return running.answer.result()
        with flights.lead(key) as flight:
            hit = self._run(self._cache.get_unless_failed(question, namespace, tags, flight))
            answer = compute(question) if hit is None else hit.answer
            if hit is None:
                check_computed(answer)
                with returning_computed_answer():
                    self._run(self._cache.store_answer(question, answer, namespace, ttl, tags, flight.computation))
            flight.answer.set_result(answer)
        return answer

    def memoize(self, namespace: str = "", *, ttl: Seconds | None = None, tags: Sequence[str] = ()) -> Callable[[F], F]:
        """Return a decorator for a function that computes the answer to a question, see `get_or_set`."""
        check_memoize(namespace)
        ttl, tags = checked_options(ttl, tags)
        return partial(memoize_function, partial(self.get_or_set, namespace=namespace, ttl=ttl, tags=tags))

    def contains(self, question: str, namespace: str = "") -> bool:
        """Return whether the answer to an equal question is stored, without counting a lookup."""
        return self._run(self._cache.contains(question, namespace))

    def explain(self, question: str, namespace: str = "") -> LookupExplanation:
        """Return what `get` would return, and why, without counting a lookup."""
        return self._run(self._cache.explain(question, namespace))

    def set(
        self,
        question: str,
        answer: str,
        namespace: str = "",
        *,
        ttl: Seconds | None = None,
        tags: Sequence[str] = (),
    ) -> bool:
        """Store an answer durably for `ttl`: seconds, text such as `1h`, or a `timedelta`.

        Without `ttl`, the lifetime of the namespace counts, or else of the settings; `max_ttl` limits all.
        `tags` select answers for `delete_tag`. Return False if the answer exceeds the capacity or `max_response_bytes`, or
        contains text to redact; a question is stored redacted.
        """
        return self._run(self._cache.set(question, answer, namespace, ttl=ttl, tags=tags))

    def set_many(
        self,
        answers: Mapping[str, str] | Iterable[tuple[str, str]],
        namespace: str = "",
        *,
        ttl: Seconds | None = None,
        tags: Sequence[str] = (),
    ) -> int:
        """Store the answer to each question, see `set`, with few commits; return how many of them are stored at the end.

        `answers` are pairs of a question and its answer, or a mapping. A mapping or sequence is checked first; of another
        iterable, each batch of 1,000 pairs is stored before the next one is read. Beyond the capacity, later answers evict
        earlier ones, which do not count.
        """
        self._cache.check_usable()
        stored, tags = list[str](), checked_tags(tags)
        for batch in pair_batches(answers):
            stored += self._run(self._cache.store_batch(batch, namespace, ttl=ttl, tags=tags))
        return self._run(self._cache.count_stored(stored))

    def delete(self, question: str, namespace: str = "") -> bool:
        """Remove the answer to an equal question, also an expired one; return whether it existed."""
        return self._run(self._cache.delete(question, namespace))

    def delete_tag(self, tag: str, namespace: str | None = None) -> int:
        """Remove the answers with a tag, in one namespace or (None) in all; return their number, without expired ones."""
        return self._run(self._cache.delete_tag(tag, namespace))

    def clear(self, namespace: str | None = None) -> int:
        """Remove all answers of one namespace or (None) of all; return their number, without expired ones."""
        return self._run(self._cache.clear(namespace))

    def count(self, namespace: str | None = None) -> int:
        """Return the number of answers that have not expired, in one namespace or (None) in all."""
        return self._run(self._cache.count(namespace))

    def answers(self, namespace: str | None = None) -> Iterator[CachedAnswer]:
        """Yield the stored answers of one namespace or (None) of all, in no particular order."""
        for id in self._run(self._cache.ids(namespace)):
            if (answer := self._run(self._cache.answer(id))) is not None:
                yield answer

    def feedback(self, answer: CachedAnswer, right: bool, question: str | None = None) -> None:
        """Report whether an answer was right. A wrong answer is served for equal questions only.

        From the `question` that received the answer, the policy `learned` also learns: to withdraw such a verdict, give the same
        `question`.
        """
        self._run(self._cache.feedback(answer, right, question))

    def stats(self) -> CacheStats:
        """Return the figures of `kvproxy cache stats --json`, and `gets`: the numbers of results since the cache was opened."""
        return self._run(self._cache.stats())

    def close(self) -> None:
        """Store the counts of hits, and close the store; `with` calls it. A second call does nothing.

        Running calls of other threads end first, but for `compute`. After five seconds, lookups that have not begun raise
        RuntimeError.
        """
        if not self._thread.is_alive():
            # After a fork, only the parent has the thread, and only the parent may close its connections.
            return
        with self._closing:
            if self._loop.is_closed():
                return
            with self._starting:
                self._is_closed = True
            try:
                _start_closing(self._cache, self._loop).result()
            finally:
                self._thread.join()

    def __enter__(self) -> "Cache":
        self._cache.check_usable()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        """Return True, although an empty cache has the length 0, so that `if cache` means that there is one."""
        return True

    def __contains__(self, question: str) -> bool:
        return self.contains(question)

    def __iter__(self) -> Iterator[CachedAnswer]:
        return self.answers()

    def __repr__(self) -> str:
        return repr(self._cache).replace("AsyncCache", "Cache", 1)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._cache.check_usable()
            with self._starting:
                if self._is_closed:
                    raise RuntimeError(CLOSED)
                running = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise
        try:
            return running.result()
        except CancelledError:
            raise RuntimeError(CLOSED) from None
        except RuntimeError as error:
            if "cannot schedule new futures" in str(error):
                raise RuntimeError(_EXITING) from error
            raise


def _run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _start_closing(cache: AsyncCache, loop: asyncio.AbstractEventLoop) -> "Future[None]":
    """Close a cache, cancel its unfinished calls, and stop its event loop."""
    closing = asyncio.run_coroutine_threadsafe(_close(cache), loop)
    closing.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
    return closing


async def _close(cache: AsyncCache) -> None:
    try:
        await cache.close()
    finally:
        unfinished = asyncio.all_tasks() - {asyncio.current_task()}
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)


def _close_unused(cache: AsyncCache, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Close a cache that nothing refers to, without waiting. After a fork, only the parent has the thread."""
    if thread.is_alive() and not loop.is_closed():
        _start_closing(cache, loop)


def open_async_cache(
    where: str | Path,
    settings: CacheSettings | None = None,
    *,
    embedder: str | Path | Embedder = "default",
    guards: Sequence[Guard] = (),
    policy: PolicyName | Policy | None = None,
    encryption: EncryptionSettings | None = None,
    redaction: RedactionSettings | None = None,
    namespace_ttls: Mapping[str, Seconds] = MappingProxyType({}),
    refusal_limit: int | None = MAX_REFUSALS,
    lookup_threads: int | None = None,
) -> AsyncCache:
    """Open a cache for asyncio. A missing file is created; the folder must exist.

    Args:
        where: a file, or `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`.
        settings: None uses the defaults of `kvproxy serve`, but a lookup waits without a limit.
        embedder: an `Embedder`, or its name: `default`, `multilingual`, a plugin's, a folder, or a sentence-transformers id.
        guards: veto similar questions, in addition to the guards of the settings.
        policy: a name instead of the settings' own, or an object that decides about similar questions, instead of the policy of
            the settings, its guards, and its verifier.
        encryption: location of the keys; None does not encrypt.
        redaction: texts to redact before storing; None redacts nothing.
        namespace_ttls: lifetime of answers by namespace; others have that of the settings.
        refusal_limit: maximum refused questions near an answer. Beyond it, the answer has exact hits only; see
            `RefusalBudget`. None disables the limit, for questions of trusted users.
        lookup_threads: number of lookups at a time, for a policy that waits for a model; None for one per core, or 8 for
            PostgreSQL.

    Raises:
        SettingsError: the keys, the store, the embedder or the verifier cannot be used, or a setting has no effect here.
        TypeError, ValueError: an argument has the wrong type or value.
    """
    where = checked_location(where)
    for name, value, expected in (
        ("settings", settings, CacheSettings),
        ("encryption", encryption, EncryptionSettings),
        ("redaction", redaction, RedactionSettings),
    ):
        if value is not None:
            check_type(name, value, expected)
    check_limit("refusal_limit", refusal_limit)
    check_limit("lookup_threads", lookup_threads)
    settings, deciding = with_policy(settings or CacheSettings(), policy)
    check_settings(settings)
    ttls = checked_lifetimes(namespace_ttls)
    cache = open_response_cache(
        where,
        settings,
        embedder=checked_embedder(embedder),
        guards=checked_guards(guards),
        policy=deciding,
        encryption=encryption or EncryptionSettings(),
        redaction=redaction or RedactionSettings(),
        # A forwarded hit teaches nothing, because a library sees no fresh answers.
        random_number=lambda: 1.0,
        refusal_limit=refusal_limit,
        lookup_threads=lookup_threads,
    )
    return AsyncCache(cache, settings, namespace_ttls=ttls, maintenance=Maintenance(cache))


def open_cache(
    where: str | Path,
    settings: CacheSettings | None = None,
    *,
    embedder: str | Path | Embedder = "default",
    guards: Sequence[Guard] = (),
    policy: PolicyName | Policy | None = None,
    encryption: EncryptionSettings | None = None,
    redaction: RedactionSettings | None = None,
    namespace_ttls: Mapping[str, Seconds] = MappingProxyType({}),
    refusal_limit: int | None = MAX_REFUSALS,
    lookup_threads: int | None = None,
) -> Cache:
    """Open a cache for threads. See `open_async_cache` for the arguments."""
    return Cache(
        open_async_cache(
            where,
            settings,
            embedder=embedder,
            guards=guards,
            policy=policy,
            encryption=encryption,
            redaction=redaction,
            namespace_ttls=namespace_ttls,
            refusal_limit=refusal_limit,
            lookup_threads=lookup_threads,
        )
    )
