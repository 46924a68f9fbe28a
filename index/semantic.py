"""The semantic cache: one vector index for each namespace over the stored responses."""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from index.embedder import Embedder, MicroBatcher
from index.entry import Entry
from index.policy import ThresholdPolicy, Verdict
from index.store import ResponseStore
from index.vectors import VectorIndex

_REBUILD_BATCH = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """A neighbour and what was decided of it."""

    id: str
    prompt: str
    similarity: float
    verdict: Verdict
    guard: str | None = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """The entry to serve, if any, and every neighbour that was looked at, nearest first."""

    entry: Entry | None
    similarity: float | None
    candidates: tuple[Candidate, ...]


class SemanticCache:
    """Finds answers to similar questions, in the same namespace only.

    Args:
        store: the responses.
        embedder: makes the vectors.
        policy: accepts or refuses a neighbour.
    """

    def __init__(self, store: ResponseStore, embedder: Embedder, policy: ThresholdPolicy) -> None:
        self._store = store
        self._batcher = MicroBatcher(embedder)
        self._embedder = embedder
        self.policy = policy
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

    async def lookup(self, namespace: str, text: str, *, threshold: float | None = None, limit: int = 5) -> Lookup:
        """The best acceptable neighbour of a text.

        Args:
            namespace: where to look.
            text: the question.
            threshold: least similarity of this request; it can make the policy stricter, never looser.
            limit: neighbours to look at.
        """
        if namespace not in self._indexes:
            return Lookup(None, None, ())
        vector = await self._batcher.embed(text)
        return await asyncio.to_thread(self._judge, namespace, text, vector, threshold, limit)

    def _judge(self, namespace: str, text: str, vector: np.ndarray, threshold: float | None, limit: int) -> Lookup:
        with self._lock:
            index = self._indexes.get(namespace)
            near = index.search(vector, limit) if index is not None else []
        served: Entry | None = None
        similarity: float | None = None
        candidates: list[Candidate] = []
        for id, score in near:
            entry = self._store.get(id)
            if entry is None:
                continue
            if self._store.find(entry.key) is None:
                candidates.append(Candidate(id, entry.prompt, score, "expired"))
                continue
            decision = self.policy.decide(text, entry.prompt, score, threshold)
            candidates.append(Candidate(id, entry.prompt, score, decision.verdict, decision.guard))
            if decision.verdict == "accepted" and served is None:
                served, similarity = entry, score
        return Lookup(served, similarity, tuple(candidates))

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
