"""The semantic cache: similar questions, each sought in its own namespace, over the stored responses."""

import asyncio
import logging
import os
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from kvproxy.index.entry import Entry, Freshness
from kvproxy.index.errors import EmbedderError
from kvproxy.index.models.embedder import Embedder
from kvproxy.index.models.languages import EVERY, can_match, is_known
from kvproxy.index.pending_writes import PendingWrites, wait_for
from kvproxy.index.policies.learned.feedback import Learning
from kvproxy.index.policies.policy import Limits, Policy, PolicyName
from kvproxy.index.search.batching import MicroBatcher, WriteBatcher, comparable
from kvproxy.index.search.decider import Decider
from kvproxy.index.search.deferred_embedding import DeferredEmbeddings, DeferredEntry, LookupCallback
from kvproxy.index.search.faiss_segment import Kind
from kvproxy.index.search.lookup import FRESH, Lookup
from kvproxy.index.search.lookup_queue import Ask, Lookups
from kvproxy.index.search.namespace_cache import Held
from kvproxy.index.search.neighbours import open_neighbours
from kvproxy.index.store import NewEntry, PurgeRequest, RemovedEntry, Store, WriteResult
from kvproxy.index.store.observations import Observations

_REBUILD_BATCH = 256
_SWEPT = 32
_READ_LATELY = 256
_REMOTE_JUDGES = 8  # Threads that wait for a server; over a file a core each.
_log = logging.getLogger("kvproxy")


class SemanticCache:
    """Finds answers to similar questions, in the same namespace only.

    Args:
        store: the responses.
        embedder: makes the vectors.
        policy: decides over neighbours.
        observations: what became of its decisions; None to remember nothing.
        chance: uniform numbers below 1, see `lookup.judge`.
        vectors: how vectors are kept in memory: float32, fp16 or int8.
        other_policy: makes the policy that a lookup names in place of `policy`.
        languages: that the embedder and the policy know; questions in others are answered from equal requests only.
    """

    def __init__(
        self,
        store: Store,
        embedder: Embedder,
        policy: Policy,
        observations: Observations | None = None,
        chance: Callable[[], float] = random.random,
        *,
        vectors: Kind = "float32",
        languages: Sequence[str] = (EVERY,),
        other_policy: Callable[[PolicyName], Policy] | None = None,
    ) -> None:
        self._store = store
        self._batcher = MicroBatcher(embedder)
        self._embedder = embedder
        self.observations = observations
        self._languages = tuple(languages)
        # It is asked before a question is looked up, and once more before its answer is stored.
        self._reads = lru_cache(_READ_LATELY)(lambda text: can_match(text, embedder, self._languages))
        self._neighbours = open_neighbours(store, embedder.name, embedder.dim, vectors)
        self.decider = Decider(store, self._neighbours, observations, policy, other_policy, chance)
        self._held = Held(self._neighbours, in_thread=store.remote)
        self.pending_writes = PendingWrites()
        self._writes = WriteBatcher(self._write)
        self._order = threading.Lock()  # The index takes vectors in the order in which the store numbered them.
        self.lookups = Lookups(self._look_up)
        """Those that are under way: what is not urgent waits for them."""
        self._judges = ThreadPoolExecutor(_REMOTE_JUDGES if store.remote else os.cpu_count(), "kvproxy-judge")
        self.behind = DeferredEmbeddings(self._give_vectors, self._without_vectors, lambda: self.lookups.busy)
        """Entries that were stored before they had a vector."""
        self.learning = (
            None
            if observations is None
            else Learning(store, self._batcher, embedder.name, observations, policy.learns, self._unindex)
        )
        """What learns from fresh answers; None where nothing is remembered."""

    def rebuild(self) -> int:
        """Embed what has no vector of this embedder, and get ready to search; how many entries were embedded.

        Raises:
            EmbedderError: the embedder fails.
        """
        embedded, name = 0, self._embedder.name
        while missing := self._store.missing_vectors(name, _REBUILD_BATCH):
            vectors = self._vectors_of(missing)
            self._store.add_vectors([(entry, vectors[entry.id]) for entry in missing if entry.id in vectors], name)
            if len(vectors) < len(missing):
                self._store.unindex([entry.id for entry in missing if entry.id not in vectors])
            embedded += len(vectors)
        self._neighbours.load()
        return embedded

    def _vectors_of(self, entries: Sequence[Entry]) -> dict[str, np.ndarray]:
        """By id, as far as the embedder makes usable ones."""
        entries = [entry for entry in entries if self.reads(entry.prompt)]
        if not entries:
            return {}
        try:
            vectors = self._batcher.vectors([entry.prompt for entry in entries])
        except EmbedderError:
            # Is it the embedder, or one of the texts?
            self._batcher.check()
            vectors = [self._vector_of(entry) for entry in entries]
        return {entry.id: vector for entry, vector in zip(entries, vectors, strict=True) if vector is not None}

    def _vector_of(self, entry: Entry) -> np.ndarray | None:
        try:
            return self._batcher.vectors([entry.prompt])[0]
        except EmbedderError as error:
            _log.warning("entry %s is kept for equal requests only: %s", entry.id[:12], error)
            return None

    async def lookup(
        self,
        namespace: str,
        text: str,
        *,
        limits: Limits = Limits(),
        limit: int | None = None,
        explore: bool = True,
        seconds: float | None = None,
        served: tuple[Freshness, ...] = FRESH,
        policy: PolicyName | None = None,
    ) -> Lookup:
        """The best acceptable neighbour of a text, also among what is on its way to the store and arrives in time.

        Args:
            namespace: where to look.
            text: the question.
            limits: what this request asks of the policy; they can make it stricter, never looser.
            limit: neighbours to look at; by default as many as the policy does.
            explore: now and then forward what could be served, where the policy learns from that.
            seconds: time for it. What is not decided by then comes back with `skipped`; None takes its time.
            served: how fresh an entry must be.
            policy: name of the one that decides; None for the usual one.
        """
        writes = self.pending_writes.awaited(namespace, seconds)
        if not writes.under_way and not await self._held.holds(namespace):
            return Lookup(None, (), namespace=namespace, question=text)
        found = await self.lookups.find(Ask(namespace, text, limits, limit, explore, served, policy, writes), seconds)
        if not found.candidates and not found.skipped:
            self._held.forget(namespace)
        return found

    @property
    def policy(self) -> Policy:
        """What decides where a lookup names no other."""
        return self.decider.policy

    def _look_up(self, asks: Sequence[Ask]) -> list[Lookup]:
        """All that several lookups need, in one job: vectors, neighbours, decisions."""
        read = [ask for ask in asks if self.reads(ask.question)]
        vectors = dict(zip(read, self._batcher.vectors([ask.question for ask in read]), strict=True))

        # Others wrote while the questions were embedded.
        for ask in read:
            wait_for(ask.writes, partial(self.decider.may_serve, ask, vectors[ask], self._batcher.known))

        def one(ask: Ask) -> Lookup:
            if ask not in vectors:
                return Lookup(None, (), namespace=ask.namespace, question=ask.question)
            return self.decider.decide(ask, comparable(vectors[ask], self._embedder))

        return [one(asks[0])] if len(asks) == 1 else list(self._judges.map(one, asks))

    def reads(self, text: str) -> bool:
        """Whether the models know its language and take in all of it; other texts are answered from equal requests only."""
        return self._reads(text)

    def knows(self, text: str) -> bool:
        """Whether a text is in a language that the models in use were made for."""
        return is_known(text, self._languages, self._embedder.vocabulary)

    async def entry(self, id: str) -> Entry | None:
        """The entry with an id, expired or not."""
        return await asyncio.to_thread(self._store.get, id)

    async def similarity(self, one: str, other: str) -> float:
        """Cosine of two texts."""
        first, second = await asyncio.gather(self._batcher.embed(one), self._batcher.embed(other))
        return float(first @ second)

    async def feedback(self, entry: Entry, right: bool, question: str | None = None) -> None:
        """A person's verdict: a rejected entry is served for equal requests only, until it is approved.

        Args:
            question: what the entry's answer was served for; with it a policy that learns does so from the verdict.
        """
        if self.learning is not None:
            lookup = None if question is None else await self.lookup(entry.namespace, question, explore=False)
            await self.learning.feedback(entry, right, lookup)

    def _unindex(self, ids: Sequence[str]) -> None:
        """Keep entries for equal requests only."""
        self._change(self._store.unindex, ids)

    async def insert(self, entry: Entry) -> bool:
        """Store an entry, durable and findable when this returns; whether it was kept, see `WriteBatcher.put`."""
        return await self._writes.put(await self._embedded(entry))

    async def _embedded(self, entry: Entry) -> NewEntry:
        if not entry.semantic or not self.reads(entry.prompt):
            return NewEntry(replace(entry, semantic=False))
        try:
            return NewEntry(entry, await self._batcher.embed(entry.prompt), self._embedder.name)
        except EmbedderError as error:
            _log.warning("an answer is kept for equal requests only: %s", error)
            return NewEntry(replace(entry, semantic=False))

    async def insert_soon(self, entry: Entry, told: LookupCallback | None) -> bool:
        """Store an entry whose question there was no time to look up: durable when this returns, findable some time later.

        Args:
            told: told then what the lookup would have found, if given; never where too many wait, see `behind`.
        """
        at_once = not entry.semantic or self._batcher.known(entry.prompt) is not None
        kept = await (self.insert(entry) if at_once else self._writes.put(NewEntry(entry)))
        if kept and entry.semantic:
            self.behind.add(DeferredEntry(entry, told))
        return kept

    def _give_vectors(self, late: Sequence[DeferredEntry]) -> list[Callable[[], None]]:
        """Embed entries that have no vector, and look up what is near them first; who is to be told what."""
        entries = [each.entry for each in late]
        vectors = self._vectors_of(entries)
        tell: list[Callable[[], None]] = []
        for each in late:
            if each.told is not None and each.entry.id in vectors:
                entry = each.entry
                ask = Ask(entry.namespace, entry.prompt, Limits(), None, explore=False)
                tell.append(partial(each.told, self.decider.decide(ask, vectors[entry.id], besides=entry.id)))
        given = [(entry, vectors[entry.id]) for entry in entries if entry.id in vectors]
        with self._order:
            numbers = self._store.add_vectors(given, self._embedder.name)
            puts = [NewEntry(entry, vector, self._embedder.name) for entry, vector in given]
            self._neighbours.apply(puts, WriteResult(tuple(numbers.get(entry.id) for entry, _ in given), ()))
        if len(vectors) < len(entries):
            self._store.unindex([entry.id for entry in entries if entry.id not in vectors])
        return tell

    def _without_vectors(self) -> list[Entry]:
        return self._store.missing_vectors(self._embedder.name, _SWEPT)

    async def insert_many(self, entries: Sequence[Entry]) -> None:
        """Store entries in few transactions."""
        puts = await asyncio.gather(*map(self._embedded, entries))
        await asyncio.gather(*map(self._writes.put, puts))

    def _write(self, puts: Sequence[NewEntry]) -> WriteResult:
        with self._order:
            written = self._store.put_many(puts)
            try:
                self._neighbours.apply(puts, written)
            except Exception:
                # They are stored, and found by equal requests; a start finds them for similar ones too.
                _log.exception("the index did not follow a write")
        return written

    async def remove(self, ids: Sequence[str], by: PurgeRequest | None = None) -> int:
        """Remove entries; how many there were."""
        return await asyncio.to_thread(self._change, partial(self._store.delete, by=by), ids)

    def _change(self, change: Callable[[Sequence[str]], list[RemovedEntry]], ids: Sequence[str]) -> int:
        gone = change(ids)
        self._neighbours.remove(gone)
        return len(gone)

    def maintain(self) -> None:
        """Write counted hits, remove what has expired, and look after the indexes; called from time to time."""
        self._store.flush()
        if self.learning is not None:
            self.learning.flush()
        while gone := self._store.expire():
            self._neighbours.remove(gone)
        self._neighbours.maintain()

    def close(self) -> None:
        """Stop what goes on in the background, and keep what was served since the last observation."""
        self._judges.shutdown()
        if self.learning is not None:
            self.learning.flush()
        self._neighbours.close()
