"""Nearest vectors inside one namespace: compared one by one while few, by a graph when many.

New vectors go into a small flat tail, so that adding one costs no search of the graph. `merge` moves the tail into the graph,
and `rebuild` makes a new graph without the deleted ones; both are for a thread in the background, while lookups go on.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np

from kvproxy.index.search.faiss_segment import Kind, Segment

FLAT_LIMIT = 20_000
TAIL_LIMIT = 1_000
_DEAD_SHARE = 0.3  # Deleted vectors stay as tombstones until they are this share of the index.
_MERGE_STEP = 4  # Lookups wait while so many vectors are linked into the graph, a millisecond each at a million.

Source = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""The stored vectors beyond a number, some at a time: `[n]` numbers, rising, and `[n, dim]`; none at the end."""


class VectorIndex:
    """Numbers by vector. Cosine similarity, since all vectors have unit length. Safe to use from several threads.

    Args:
        dim: width of the vectors.
        kind: how they are kept, see `Segment`.
        flat_limit: vectors from which on the index is approximate.
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
        """Those of all vectors that can be found."""
        with self._lock:
            graph = set() if self.graph is None else set(self.graph.numbers.tolist())
            return (graph | set(self._tail.numbers.tolist())) - self._dead

    def adopt(self, graph: Segment, dead: Iterable[int]) -> None:
        """Take over a graph that was made before, into an index without one."""
        with self._lock:
            self.graph = graph
            self._dead |= set(dead)

    def add(self, numbers: np.ndarray, vectors: np.ndarray) -> None:
        """Add vectors, `[n, dim]`; those up to the last number are known from the store already and passed over."""
        with self._lock:
            fresh = numbers > self._last()
            if fresh.any():
                self._tail.add(numbers[fresh], vectors[fresh])

    def remove(self, numbers: Iterable[int]) -> None:
        """Forget vectors; unknown numbers are passed over."""
        with self._lock:
            for number in numbers:
                if self._removed is not None:
                    self._removed.append(number)
                if self._tail.has(number) or (self.graph is not None and self.graph.has(number)):
                    self._dead.add(number)

    def search(self, vector: np.ndarray, limit: int) -> list[tuple[int, float]]:
        """The nearest (number, cosine), nearest first, `limit` at most."""
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
        """Whether the cosines that are found are those of the stored vectors, to the last bit."""
        graph = self.graph
        return self._tail.exact and (graph is None or graph.exact)

    def due(self) -> Literal["merge", "rebuild"] | None:
        """What the thread in the background should do, if anything."""
        with self._lock:
            if len(self._dead) > 100 and len(self._dead) > _DEAD_SHARE * self._total():
                return "rebuild"
            if self.graph is None:
                return "rebuild" if len(self._tail) > self._flat_limit else None
            return "merge" if len(self._tail) > TAIL_LIMIT else None

    def merge(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Move the tail into the graph; whether it was done before `stop` said otherwise."""
        graph, tail = self.graph, self._tail
        assert graph is not None
        with self._lock:
            numbers = tail.numbers.copy()
            vectors = tail.vectors(0, len(numbers))
        done = 0
        # A GPU's index links nothing, but copies all of its vectors whenever some are added.
        step = len(numbers) if graph.on_gpu else _MERGE_STEP
        while done < len(numbers) and not stop():
            with self._lock:
                began = time.perf_counter()
                graph.add(numbers[done : done + step], vectors[done : done + step])
            done += step
            # A lock goes to whoever asks next, which would be this thread for as long as it goes on.
            time.sleep(time.perf_counter() - began)
        with self._lock:
            kept = min(done, len(numbers))
            rest = Segment(self.dim, self.kind, graph=False)
            rest.add(tail.numbers[kept:], tail.vectors(kept, len(tail)))
            self._tail = rest
        return done >= len(numbers)

    def rebuild(self, source: Source, stop: Callable[[], bool] = lambda: False) -> bool:
        """Build the index anew from the store, without what was deleted; whether it was done before `stop` said otherwise."""
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
                # What was stored since the last part is small; what comes later is added to the new tail.
                while len((part := source(segment.last))[0]):
                    segment.add(*part)
                self._dead = {number for number in self._removed if segment.has(number)}
                self.graph = segment if large else None
                self._tail = Segment(self.dim, self.kind, graph=False) if large else segment
            return True
        finally:
            # Whoever removes vectors looks at it twice.
            with self._lock:
                self._removed = None
