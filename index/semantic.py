"""The semantic cache: one vector index for each namespace over the stored responses."""

import asyncio
import random
import threading
from collections.abc import Callable, Sequence

import numpy as np

from index.embedder import Embedder, MicroBatcher
from index.entry import Entry
from index.lookup import Lookup, judge
from index.observations import Observation, Observations
from index.policies.policy import Limits, Neighbour, Policy
from index.store import ResponseStore
from index.vectors import VectorIndex

_REBUILD_BATCH = 256


class SemanticCache:
    """Finds answers to similar questions, in the same namespace only.

    Args:
        store: the responses.
        embedder: makes the vectors.
        policy: decides over neighbours.
        observations: what became of its decisions; None to remember nothing.
        chance: uniform numbers below 1, see `lookup.judge`.
    """

    def __init__(
        self,
        store: ResponseStore,
        embedder: Embedder,
        policy: Policy,
        observations: Observations | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._batcher = MicroBatcher(embedder)
        self._embedder = embedder
        self.policy = policy
        self.observations = observations
        self._chance = chance
        self._indexes: dict[str, VectorIndex] = {}
        self._namespaces: dict[str, str] = {}
        self._lock = threading.Lock()

    def rebuild(self) -> int:
        """Build all indexes from the store, embedding what has no vector of this embedder; how many vectors there are."""
        missing = self._store.missing_vectors(self._embedder.name)
        for start in range(0, len(missing), _REBUILD_BATCH):
            batch = missing[start : start + _REBUILD_BATCH]
            vectors = self._embedder.embed([entry.prompt for entry in batch])
            pairs = ((entry.id, vector) for entry, vector in zip(batch, vectors, strict=True))
            self._store.add_vectors(pairs, self._embedder.name)
        grouped: dict[str, list[tuple[str, np.ndarray]]] = {}
        for id, namespace, vector in self._store.vectors(self._embedder.name):
            grouped.setdefault(namespace, []).append((id, vector))
        with self._lock:
            self._indexes.clear()
            self._namespaces.clear()
            for namespace, members in grouped.items():
                ids = [id for id, _ in members]
                self._add(namespace, ids, np.stack([vector for _, vector in members]))
        return len(self._namespaces)

    async def lookup(
        self, namespace: str, text: str, *, limits: Limits = Limits(), limit: int = 5, explore: bool = True
    ) -> Lookup:
        """The best acceptable neighbour of a text.

        Args:
            namespace: where to look.
            text: the question.
            limits: what this request asks of the policy; they can make it stricter, never looser.
            limit: neighbours to look at.
            explore: now and then forward what could be served, where the policy learns from that.
        """
        if namespace not in self._indexes:
            return Lookup(None, ())
        vector = await self._batcher.embed(text)
        return await asyncio.to_thread(self._judge, namespace, text, vector, limits, limit, explore)

    def _judge(
        self, namespace: str, text: str, vector: np.ndarray, limits: Limits, limit: int, explore: bool
    ) -> Lookup:
        with self._lock:
            index = self._indexes.get(namespace)
            near = index.search(vector, limit) if index is not None else []
        chance = self._chance if explore else None
        return judge(self._store, self.observations, self.policy, text, near, limits, chance)

    async def entry(self, id: str) -> Entry | None:
        """The entry with an id, expired or not."""
        return await asyncio.to_thread(self._store.get, id)

    async def similarity(self, one: str, other: str) -> float:
        """Cosine of two texts."""
        first, second = await asyncio.gather(self._batcher.embed(one), self._batcher.embed(other))
        return float(first @ second)

    async def observe(self, observation: Observation) -> None:
        """Remember what became of a decision, durable when this returns, and let the policy learn from it."""
        if self.observations is not None:
            await asyncio.to_thread(self._observe, self.observations, observation)

    async def feedback(self, entry: Entry, right: bool, question: str | None = None) -> None:
        """A person's verdict: a rejected entry is served for equal requests only, until it is approved.

        Args:
            question: what the entry's answer was served for; with it the policy learns from the verdict.
        """
        score = None
        if question is not None:
            near = Neighbour(entry.prompt, await self.similarity(question, entry.prompt))
            (decision,) = await asyncio.to_thread(self.policy.decide, question, [near])
            score = decision.score
        await self.observe(Observation.verdict(entry.id, right, score, self.policy.scorer))

    def _observe(self, observations: Observations, observation: Observation) -> None:
        observations.add([observation])
        self.policy.learn(observations, 1)

    async def unindex(self, ids: Sequence[str]) -> None:
        """Keep entries for equal requests only."""
        await asyncio.to_thread(self._store.unindex, ids)
        with self._lock:
            self._forget(ids)

    async def insert(self, entry: Entry) -> None:
        """Store an entry, durable when this returns, and make it findable if it is semantic."""
        vector = await self._batcher.embed(entry.prompt) if entry.semantic else None
        replaced = await asyncio.to_thread(self._store.put, entry, vector, self._embedder.name)
        with self._lock:
            self._forget(replaced)
            if vector is not None:
                self._add(entry.namespace, [entry.id], vector[None])

    async def remove(self, ids: Sequence[str]) -> int:
        """Remove entries; how many there were."""
        removed = await asyncio.to_thread(self._store.delete, ids)
        with self._lock:
            self._forget(ids)
        return removed

    def _add(self, namespace: str, ids: list[str], vectors: np.ndarray) -> None:
        index = self._indexes.get(namespace)
        if index is None:
            index = self._indexes[namespace] = VectorIndex(self._embedder.dim)
        index.add(ids, vectors)
        self._namespaces |= dict.fromkeys(ids, namespace)

    def _forget(self, ids: Sequence[str]) -> None:
        for id in ids:
            namespace = self._namespaces.pop(id, None)
            if namespace is not None:
                self._indexes[namespace].remove([id])
                if not len(self._indexes[namespace]):
                    del self._indexes[namespace]
