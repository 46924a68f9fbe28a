"""Nearest vectors in one namespace: a flat index, or a graph (HNSW) with a flat tail.

New vectors go into the tail, so that adding one costs no search of the graph. A background thread moves the tail into the graph
(`merge`), and builds a new graph without the deleted vectors (`rebuild`), while lookups continue.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np

from kvproxy.index.search.faiss_segment import Kind, Segment

FLAT_LIMIT = 20_000
TAIL_LIMIT = 1_000
_MAX_DEAD_SHARE = 0.3  # Share of tombstones in the index that requires a rebuild.
_MERGE_STEP = 4  # Vectors added to the graph while lookups wait; each takes 1 ms in a graph of a million.

Source = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""Returns the next stored vectors beyond a number: rising numbers `[n]`, and vectors `[n, dim]`; empty at the end."""


class VectorIndex:
    """Finds the numbers of the nearest unit vectors by cosine. Thread-safe.

    Args:
        dim: width of the vectors.
        kind: see `Segment`.
        flat_limit: number of vectors from which the index is approximate.
    """

    def __init__(self, dim: int, kind: Kind = "float32", flat_limit: int = FLAT_LIMIT) -> None:
        self.dim = dim
        self.kind: Kind = kind
        self._flat_limit = flat_limit
        self._lock = threading.Lock()
        self.graph: Segment | None = None
        self._tail = Segment(dim, kind, graph=False)
        self._dead: set[int] = set()
        self._removed: list[int] | None = None

    def __len__(self) -> int:
        with self._lock:
            return self._total() - len(self._dead)

    def _total(self) -> int:
        return len(self._tail) + (len(self.graph) if self.graph is not None else 0)

    def _last(self) -> int:
        return max(self._tail.last, self.graph.last if self.graph is not None else 0)

    def numbers(self) -> set[int]:
        """Return the numbers of all vectors that are not deleted."""
        with self._lock:
            graph = set() if self.graph is None else set(self.graph.numbers.tolist())
            return (graph | set(self._tail.numbers.tolist())) - self._dead

    def adopt(self, graph: Segment, dead: Iterable[int]) -> None:
        """Use a loaded graph in an index without one."""
        with self._lock:
            self.graph = graph
            self._dead |= set(dead)

    def add(self, numbers: np.ndarray, vectors: np.ndarray) -> None:
        """Add vectors, `[n, dim]`. Numbers up to the last one are already in the index, and are skipped."""
        with self._lock:
            fresh = numbers > self._last()
            if fresh.any():
                self._tail.add(numbers[fresh], vectors[fresh])

    def remove(self, numbers: Iterable[int]) -> None:
        """Mark vectors as deleted; unknown numbers are ignored."""
        with self._lock:
            for number in numbers:
                if self._removed is not None:
                    self._removed.append(number)
                if self._tail.has(number) or (self.graph is not None and self.graph.has(number)):
                    self._dead.add(number)

    def search(self, vector: np.ndarray, limit: int) -> list[tuple[int, float]]:
        """Return at most `limit` pairs (number, cosine), nearest first."""
        with self._lock:
            if self.graph is None:
                return self._tail.search(vector, limit, self._dead)
            near = self.graph.search(vector, limit, self._dead)
            if len(self._tail):
                # During a merge a vector is in both.
                near = list(dict([*near, *self._tail.search(vector, limit, self._dead)]).items())
        return sorted(near, key=lambda hit: -hit[1])[:limit]

    @property
    def exact(self) -> bool:
        """Whether cosines are bitwise equal to the exact ones."""
        graph = self.graph
        return self._tail.exact and (graph is None or graph.exact)

    def due(self) -> Literal["merge", "rebuild"] | None:
        """Return the maintenance that the background thread should do."""
        with self._lock:
            if len(self._dead) > 100 and len(self._dead) > _MAX_DEAD_SHARE * self._total():
                return "rebuild"
            if self.graph is None:
                return "rebuild" if len(self._tail) > self._flat_limit else None
            return "merge" if len(self._tail) > TAIL_LIMIT else None

    def merge(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Move the tail into the graph, and return whether it completed before `stop` returned True."""
        graph, tail = self.graph, self._tail
        assert graph is not None
        with self._lock:
            numbers = tail.numbers.copy()
            vectors = tail.vectors(0, len(numbers))
        done = 0
        # An index on a GPU has no links, but copies all vectors for each addition.
        step = len(numbers) if graph.on_gpu else _MERGE_STEP
        while done < len(numbers) and not stop():
            with self._lock:
                began = time.perf_counter()
                graph.add(numbers[done : done + step], vectors[done : done + step])
            done += step
            # Without a pause, this thread would acquire the lock again before any other thread.
            time.sleep(time.perf_counter() - began)
        with self._lock:
            kept = min(done, len(numbers))
            rest = Segment(self.dim, self.kind, graph=False)
            rest.add(tail.numbers[kept:], tail.vectors(kept, len(tail)))
            self._tail = rest
        return done >= len(numbers)

    def rebuild(self, source: Source, stop: Callable[[], bool] = lambda: False) -> bool:
        """Build a new index from the store, and return whether it completed before `stop` returned True."""
        with self._lock:
            self._removed = []
            large = self._total() - len(self._dead) > self._flat_limit
        segment = Segment(self.dim, self.kind, graph=large)
        try:
            while len((part := source(segment.last))[0]):
                segment.add(*part)
                if stop():
                    return False
            with self._lock:
                # Few vectors were stored since the last part. Later ones are added to the new tail.
                while len((part := source(segment.last))[0]):
                    segment.add(*part)
                self._dead = {number for number in self._removed if segment.has(number)}
                self.graph = segment if large else None
                self._tail = Segment(self.dim, self.kind, graph=False) if large else segment
            return True
        finally:
            with self._lock:
                self._removed = None
