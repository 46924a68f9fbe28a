"""Finds responses to similar questions."""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np

from kvproxy.index.entry import Entry, Freshness
from kvproxy.index.errors import CacheStoreError, EmbedderError, PolicyError, WrongDimension
from kvproxy.index.failure_log import FailureLog
from kvproxy.index.models.embedder import Embedder, EmbeddingCache
from kvproxy.index.models.languages import EVERY, can_match, is_in_languages
from kvproxy.index.models.model_threads import model_threads
from kvproxy.index.pending_writes import PendingWrite, PendingWrites
from kvproxy.index.policies.learned.answer_facts import embedded_part
from kvproxy.index.policies.learned.feedback import FeedbackRecorder
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.index.policies.policy import Limits, Policy, PolicyName, describe_verdict
from kvproxy.index.search.conversations import last_turn, searched_text
from kvproxy.index.search.decider import MAX_REFUSALS, Decider, naming_failures
from kvproxy.index.search.lookup_queue import LookupQueue, LookupResult, QueueFull, Value
from kvproxy.index.search.lookup_result import FRESH, Candidate, Lookup, LookupRequest
from kvproxy.index.search.open_vector_search import open_vector_search
from kvproxy.index.store import AnswerComputation, NewEntry, Store, WriteResult
from kvproxy.index.store.group_commit import WriteBatcher
from kvproxy.index.store.observations import Observations

_REBUILD_BATCH = 256
_DEFERRED_BATCH = 4
_QUEUE_PER_THREAD = 16
_REMOTE_THREADS = 8
_EMBED_BATCH = 256
_MAX_WRITES_SHARE = 0.75
_MAX_RESPONSE_VECTORS = 8192
_MAX_WRITES_SECONDS = 1.0
_IDLE_TIMEOUT_FACTOR = 10
_log = logging.getLogger("kvproxy")


class DeferredEmbeddings:
    def __init__(self, embed_next: Callable[[], Awaitable[bool]]) -> None:
        self._embed_next = embed_next
        self._is_requested = False
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        self._is_requested = True
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._work())

    async def wait_until_idle(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        self._closed = True
        await self.wait_until_idle()

    async def _work(self) -> None:
        try:
            while self._is_requested and not self._closed:
                self._is_requested = False
                # An augmented assignment would read the flag before the await, and lose a `start` during it.
                found_some = await self._embed_next()
                self._is_requested = self._is_requested or found_some
        except Exception:
            _log.exception("entries were not embedded, and have exact hits only for now")
        finally:
            self._task = None


class SemanticCache:
    """Finds responses to similar questions of the same namespace.

    Args:
        observations: stores comparisons and verdicts; None disables learning.
        random_number: returns a uniform random number below 1, for exploration.
        languages: ISO 639-1 codes; questions in other languages have exact hits only.
        make_policy: creates the policy that a request names.
        threads: number of lookups at a time; None for one per core, or 8 if the store is a server.
        refusal_limit: see `RefusalBudget`.
        differences: the reasons of guards that users added, by name.
    """

    def __init__(
        self,
        store: Store,
        embedder: Embedder,
        policy: Policy,
        observations: Observations | None = None,
        random_number: Callable[[], float] = random.random,
        *,
        languages: Sequence[str] = (EVERY,),
        make_policy: Callable[[PolicyName], Policy] | None = None,
        threads: int | None = None,
        refusal_limit: int | None = MAX_REFUSALS,
        differences: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._embeddings = EmbeddingCache(embedder)
        # Of responses, which are compared with many fresh ones. They must not displace the vectors of questions.
        self._response_embeddings = EmbeddingCache(embedder, _MAX_RESPONSE_VECTORS)
        self.observations = observations
        self._differences = differences
        self._languages = tuple(languages)
        self._vector_search = open_vector_search(store, embedder.name, embedder.dim)
        store.removal_listeners.append(lambda removed: self._vector_search.remove(removed))
        self.decider = Decider(
            store,
            self._vector_search,
            observations,
            policy,
            make_policy,
            random_number,
            self._vector_or_none,
            refusal_limit,
        )
        self.pending_writes = PendingWrites()
        self._writes = WriteBatcher(self._write)
        self._order = threading.Lock()  # The index takes vectors in the order of their numbers in the store.
        threads = threads or (_REMOTE_THREADS if store.remote else model_threads())
        self._queue = LookupQueue(self._look_up, threads, _QUEUE_PER_THREAD * threads)
        self.deferred_embeddings = DeferredEmbeddings(self._embed_deferred)
        self._lacks_vectors = False
        self._outage = FailureLog()
        learned = policy if isinstance(policy, LearnedPolicy) else None
        self.learning = None if observations is None else FeedbackRecorder(store, observations, learned, self._unindex)

    @property
    def policy(self) -> Policy:
        return self.decider.policy

    def describe(self, candidate: Candidate) -> str:
        """Return the decision on a stored question in words."""
        return describe_verdict(candidate.verdict, candidate.guard, self._differences)

    def can_read(self, text: str) -> bool:
        """Return whether the models support the language and the length of the text's last turn."""
        return can_match(last_turn(text), self._embedder, self._languages)

    def _vector_or_none(self, text: str) -> np.ndarray | None:
        return self._embeddings.vectors([text])[0] if self.can_read(text) else None

    def supports_language(self, text: str) -> bool:
        return is_in_languages(last_turn(text), self._languages, self._embedder.vocabulary)

    async def lookup(
        self,
        namespace: str,
        text: str,
        *,
        limits: Limits = Limits(),
        explore: bool = True,
        compare: bool = True,
        seconds: float | None = None,
        allowed_freshness: tuple[Freshness, ...] = FRESH,
        policy: PolicyName | None = None,
        namespace_name: str | None = None,
    ) -> Lookup:
        """Find a response to a similar question, also among pending writes.

        Args:
            text: the prompt, see `Entry`.
            limits: make the policy stricter for this request.
            explore: a hit may be forwarded to compare the answers, and refusals count in the `RefusalBudget`.
            compare: answers are compared; otherwise, no hit is forwarded for this.
            seconds: timeout, ten times as long if no other lookup is in progress; None waits without a limit.
            allowed_freshness: an entry in another state is not served.
            policy: None uses the configured policy.
            namespace_name: see `LookupRequest`.

        Raises CacheStoreError, EmbedderError, or PolicyError.
        """
        pending = self.pending_writes.in_namespace(namespace)
        request = LookupRequest(
            namespace, text, limits, explore, compare, allowed_freshness, policy, pending, namespace_name
        )
        if not pending and not await self._has_vectors(namespace):
            return request.empty_result()
        try:
            if seconds is not None and self._queue.is_idle:
                seconds *= _IDLE_TIMEOUT_FACTOR
            began = time.monotonic()
            result = await self._queue.find(request, seconds)
            if isinstance(result, list):
                share = _MAX_WRITES_SECONDS if seconds is None else _MAX_WRITES_SHARE * seconds
                await asyncio.wait([write.task for write in result], timeout=min(_MAX_WRITES_SECONDS, share))
                left = None if seconds is None else seconds - (time.monotonic() - began)
                result = await self._queue.find(replace(request, pending=()), left)
        except QueueFull:
            return request.empty_result("queue-full")
        except TimeoutError:
            return request.empty_result("timeout")
        assert isinstance(result, Lookup)
        return result

    async def _has_vectors(self, namespace: str) -> bool:
        holds = self._vector_search.has_vectors
        return await asyncio.to_thread(holds, namespace) if self._store.remote else holds(namespace)

    def _look_up(self, request: LookupRequest) -> LookupResult:
        if not self.can_read(request.question):
            return request.empty_result()
        vector = self._embeddings.vector(searched_text(request.question))
        floor = self.decider.policy_by_name(request.policy).floor
        awaited = [write for write in request.pending if not write.task.done() and self._is_near(write, vector, floor)]
        return awaited or self.decider.decide(request, vector)

    def _is_near(self, write: PendingWrite, vector: np.ndarray, floor: float) -> bool:
        other = None if write.question is None else self._embeddings.get_cached(searched_text(write.question))
        return other is None or float(vector @ other) >= floor

    async def run_in_background(self, job: Callable[[], Value]) -> Value:
        """Run a job on a thread of the lookups when none of them waits, or after one second, and return its result."""
        return await self._queue.run_in_background(job)

    async def embed(self, text: str) -> np.ndarray:
        return await self._embed(text, self._embeddings)

    async def _embed(self, text: str, embeddings: EmbeddingCache) -> np.ndarray:
        cached = embeddings.get_cached(text)
        if cached is not None:
            return cached
        return await self._queue.run_in_background(partial(embeddings.vector, text))

    async def embed_many(self, texts: Sequence[str]) -> None:
        """Embed prompts in batches, so that the next lookups and inserts find their vectors in memory.

        A lookup of another question waits for a batch. The lookup or insert reports the error of a prompt that fails; this raises
        an EmbedderError if every prompt fails.
        """
        for start in range(0, len(texts), _EMBED_BATCH):
            work = partial(self._embed_readable, texts[start : start + _EMBED_BATCH])
            await self._queue.run_in_background(work)

    def _embed_readable(self, texts: Sequence[str]) -> None:
        readable = [searched_text(text) for text in texts if self.can_read(text)]
        if not readable:
            return
        try:
            self._embeddings.vectors(readable)
        except EmbedderError:
            self._embeddings.check_embedder()

    def cached_similarity(self, one: str, other: str) -> float | None:
        """Return the cosine of the beginnings of two responses; None if one is not in the cache. Thread-safe."""
        vectors = [self._response_embeddings.get_cached(embedded_part(text)) for text in (one, other)]
        return None if vectors[0] is None or vectors[1] is None else float(vectors[0] @ vectors[1])

    async def similarity(self, one: str, other: str) -> float:
        """Return the cosine of the beginnings of two responses."""
        vectors = [await self._embed(embedded_part(text), self._response_embeddings) for text in (one, other)]
        return float(vectors[0] @ vectors[1])

    async def nearest(self, text: str, limit: int) -> list[tuple[Entry, float]]:
        """Return the entries of all namespaces with the nearest questions, and the cosines, nearest first."""
        vector = await self.embed(searched_text(text))
        near = dict(await asyncio.to_thread(self._store.nearest, vector, self._embedder.name, limit))
        entries = await asyncio.to_thread(self._store.get_many, list(near))
        return [(entries[id], cosine) for id, cosine in near.items() if id in entries]

    def entries(self, ids: Sequence[str]) -> dict[str, Entry]:
        return self._store.get_many(ids)

    async def feedback(self, entry: Entry, right: bool, question: str | None = None) -> None:
        """Record a person's verdict on an entry as an answer to `question`, if known. A rejected entry has exact hits only."""
        if self.learning is not None:
            work = partial(self._decide_pair_if_possible, entry, question or "")
            lookup = None if question is None else await self._queue.run_in_background(work)
            await self.learning.record_verdict(entry, right, lookup)

    def _decide_pair_if_possible(self, entry: Entry, question: str) -> Lookup | None:
        try:
            return self._decide_pair(entry, question)
        except (EmbedderError, PolicyError) as error:
            _log.warning("a verdict is stored without its question: %s", error)
            return None

    def _decide_pair(self, entry: Entry, question: str) -> Lookup | None:
        """Look up a question among one entry only, which may have nearer neighbours now; None if it cannot be matched."""
        heads = self._store.questions([entry.id])
        if not heads or not self.can_read(question) or not self.can_read(entry.prompt):
            return None
        one, other = (self._embeddings.vector(searched_text(text)) for text in (question, entry.prompt))
        head = heads[entry.id]
        request = LookupRequest(
            entry.namespace,
            question,
            explore=False,
            allowed_freshness=(head.freshness,),
            namespace_name=entry.namespace_name,
        )
        near = [(head, float(one @ other))]
        with naming_failures(self.policy):
            return self.decider.decide_candidates(request, near, self.policy, with_verdicts=False)

    async def insert(self, entry: Entry, computation: AnswerComputation | None = None) -> bool:
        if entry.semantic and self.can_read(entry.prompt):
            try:
                vector = await self.embed(searched_text(entry.prompt))
                return await self._writes.put(NewEntry(entry, vector, self._embedder.name, computation))
            except EmbedderError as error:
                is_stored = await self._writes.put(NewEntry(entry, computation=computation))
                self._postpone_embedding(error)
                return is_stored
        return await self._writes.put(NewEntry(replace(entry, semantic=False), computation=computation))

    def _postpone_embedding(self, error: EmbedderError) -> None:
        """Let `maintain` embed the entries without a vector."""
        self._lacks_vectors = True
        self._outage.log_failure("new entries have exact hits only, until they can be embedded: %s", error)

    async def insert_deferred(self, entry: Entry, computation: AnswerComputation | None = None) -> bool:
        if not entry.semantic or self._embeddings.get_cached(searched_text(entry.prompt)) is not None:
            return await self.insert(entry, computation)
        stored = await self._writes.put(NewEntry(entry, computation=computation))
        self.deferred_embeddings.start()
        return stored

    def rebuild(self) -> int:
        """Load the indexes, and embed entries without a vector; return the number of embedded entries.

        Raises WrongDimension. After another failure of the embedder, `maintain` tries again.
        """
        self._check_embedder()
        self._vector_search.load()
        return self._embed_missing()

    def _embed_missing(self) -> int:
        embedded = 0
        # An insert sets it again.
        self._lacks_vectors = False
        try:
            while missing := self._store.missing_vectors(self._embedder.name, _REBUILD_BATCH):
                vectors = self._vectors_of(missing)
                self._store_vectors(missing, vectors)
                embedded += len(vectors)
        except WrongDimension:
            raise
        except EmbedderError as error:
            self._postpone_embedding(error)
        else:
            self._outage.log_recovery("the embedder works again, and all entries are embedded")
        return embedded

    def _check_embedder(self) -> None:
        """Raise WrongDimension if no text could be embedded. Another failure may pass."""
        try:
            self._embeddings.check_embedder()
        except WrongDimension:
            raise
        except EmbedderError as error:
            _log.warning("%s", error)

    def _vectors_of(self, entries: Sequence[Entry]) -> dict[str, np.ndarray]:
        entries = [entry for entry in entries if self.can_read(entry.prompt)]
        if not entries:
            return {}
        try:
            vectors = self._embeddings.vectors([searched_text(entry.prompt) for entry in entries])
        except EmbedderError:
            self._embeddings.check_embedder()
            vectors = [self._vector_of(entry) for entry in entries]
        return {entry.id: vector for entry, vector in zip(entries, vectors, strict=True) if vector is not None}

    def _vector_of(self, entry: Entry) -> np.ndarray | None:
        try:
            return self._embeddings.vectors([searched_text(entry.prompt)])[0]
        except EmbedderError as error:
            _log.warning("entry %s has exact hits only: %s", entry.id[:12], error)
            return None

    def _store_vectors(self, entries: Sequence[Entry], vectors: dict[str, np.ndarray]) -> None:
        name = self._embedder.name
        embedded = [NewEntry(entry, vectors[entry.id], name) for entry in entries if entry.id in vectors]
        with self._order:
            self._vector_search.index_entries(embedded, self._store.add_vectors(embedded))
        self._store.unindex([entry.id for entry in entries if entry.id not in vectors])

    async def _embed_deferred(self) -> bool:
        entries = await asyncio.to_thread(self._store.missing_vectors, self._embedder.name, _DEFERRED_BATCH)
        vectors: dict[str, np.ndarray] = {}
        for entry in entries:
            # With one entry in each job, a lookup waits for one at most.
            try:
                vectors |= await self._queue.run_in_background(partial(self._vectors_of, [entry]))
            except EmbedderError as error:
                self._postpone_embedding(error)
                return False
        await asyncio.to_thread(self._store_vectors, entries, vectors)
        return bool(entries)

    def _write(self, entries: Sequence[NewEntry]) -> WriteResult:
        with self._order:
            result = self._store.put_many(entries)
            try:
                self._vector_search.index_entries(entries, result)
            except Exception:
                # The entries are stored and have exact hits. At the next start, they enter the index.
                _log.exception("the index did not follow a write")
        return result

    def _unindex(self, ids: Sequence[str]) -> None:
        self._vector_search.remove(self._store.unindex(ids))

    def maintain(self, *, embeds_all: bool = False) -> None:
        """Embed entries after a failure of the embedder, and with `embeds_all` also those that other processes stored."""
        if self._lacks_vectors or embeds_all:
            self._embed_missing()
        if self.learning is not None:
            self.learning.flush()
        self._vector_search.maintain()

    def close(self) -> None:
        self._queue.close()
        if self.learning is not None:
            # The store logs its failure. The rest of the proxy must still close.
            with contextlib.suppress(CacheStoreError):
                self.learning.flush()
        self._vector_search.close()
