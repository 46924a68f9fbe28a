"""The semantic cache: similar questions, each sought in its own namespace, over the stored responses."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from kvproxy.index.batching import MicroBatcher, WriteBatcher
from kvproxy.index.embedder import Embedder, usable_vectors
from kvproxy.index.entry import Entry
from kvproxy.index.errors import EmbedderError
from kvproxy.index.learning import Learning
from kvproxy.index.lookup import Lookup, judge
from kvproxy.index.neighbours import open_neighbours
from kvproxy.index.observations import Observations
from kvproxy.index.policies.policy import Limits, Policy
from kvproxy.index.segments import Kind
from kvproxy.index.store import Gone, Put, Store, Written

_REBUILD_BATCH = 256
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
    ) -> None:
        self._store = store
        self._batcher = MicroBatcher(embedder)
        self._embedder = embedder
        self.policy = policy
        self.observations = observations
        self._chance = chance
        self._neighbours = open_neighbours(store, embedder.name, embedder.dim, vectors)
        self._writes = WriteBatcher(self._write)
        self.learning = (
            None
            if observations is None
            else Learning(store, self._batcher, embedder.name, observations, policy.learns, self.unindex)
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
            vectors = usable_vectors(self._embedder, [entry.prompt for entry in entries])
        except EmbedderError:
            usable_vectors(self._embedder, ["Is it the embedder, or one of the texts?"])
            vectors = [self._vector_of(entry) for entry in entries]
        return {entry.id: vector for entry, vector in zip(entries, vectors, strict=True) if vector is not None}

    def _vector_of(self, entry: Entry) -> np.ndarray | None:
        try:
            return usable_vectors(self._embedder, [entry.prompt])[0]
        except EmbedderError as error:
            _log.warning("entry %s is kept for equal requests only: %s", entry.id[:12], error)
            return None

    async def lookup(
        self, namespace: str, text: str, *, limits: Limits = Limits(), limit: int | None = None, explore: bool = True
    ) -> Lookup:
        """The best acceptable neighbour of a text.

        Args:
            namespace: where to look.
            text: the question.
            limits: what this request asks of the policy; they can make it stricter, never looser.
            limit: neighbours to look at; by default as many as the policy does.
            explore: now and then forward what could be served, where the policy learns from that.
        """
        if not await asyncio.to_thread(self._neighbours.holds, namespace) or not self.reads(text):
            return Lookup(None, (), namespace=namespace, question=text)
        vector = await self._batcher.embed(text)
        reach = self.policy.reach if limit is None else limit
        return await asyncio.to_thread(self._judge, namespace, text, vector, limits, reach, explore)

    def _judge(
        self, namespace: str, text: str, vector: np.ndarray, limits: Limits, limit: int, explore: bool
    ) -> Lookup:
        near = self._neighbours.search(namespace, vector, limit)
        chance = self._chance if explore else None
        return judge(self._store, self.observations, self.policy, namespace, text, near, limits, chance)

    def reads(self, text: str) -> bool:
        """Whether the embedder takes in all of a text; other ones are answered from equal requests only."""
        return self._embedder.reads(text)

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

    async def unindex(self, ids: Sequence[str]) -> None:
        """Keep entries for equal requests only."""
        await asyncio.to_thread(self._change, self._store.unindex, ids)

    async def insert(self, entry: Entry) -> bool:
        """Store an entry, durable when this returns, and make it findable if it is semantic.

        Returns:
            Whether it was kept; an entry that is larger than the whole store may be is not.
        """
        return await self._writes.put(await self._embedded(entry))

    async def _embedded(self, entry: Entry) -> Put:
        if not entry.semantic or not self.reads(entry.prompt):
            return Put(replace(entry, semantic=False))
        try:
            return Put(entry, await self._batcher.embed(entry.prompt), self._embedder.name)
        except EmbedderError as error:
            _log.warning("an answer is kept for equal requests only: %s", error)
            return Put(replace(entry, semantic=False))

    async def insert_many(self, entries: Sequence[Entry]) -> None:
        """Store entries in few transactions."""
        puts = await asyncio.gather(*map(self._embedded, entries))
        await asyncio.gather(*map(self._writes.put, puts))

    def _write(self, puts: Sequence[Put]) -> Written:
        written = self._store.put_many(puts)
        try:
            self._neighbours.apply(puts, written)
        except Exception:
            # They are stored, and found by equal requests; a start finds them for similar ones too.
            _log.exception("the index did not follow a write")
        return written

    async def remove(self, ids: Sequence[str]) -> int:
        """Remove entries; how many there were."""
        return await asyncio.to_thread(self._change, self._store.delete, ids)

    def _change(self, change: Callable[[Sequence[str]], list[Gone]], ids: Sequence[str]) -> int:
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
        if self.learning is not None:
            self.learning.flush()
        self._neighbours.close()
