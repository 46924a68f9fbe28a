"""A FAISS index of one namespace: flat, or, with many vectors, an HNSW graph or a flat index on a GPU.

The store numbers vectors in the order of their insertion. FAISS cannot delete vectors from a graph, so deleted vectors are
skipped until a background thread has built a new graph.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterable, Set
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

FLAT_LIMIT = 20_000
_LINKS = 32
_EF_SEARCH = 128  # FAISS's default of 16 misses neighbours of clustered questions.
# Of 120,000 questions in dense clusters, 5% could not be reached; 17% with FAISS's default of 40.
_EF_CONSTRUCTION = 100
_MAX_RESULTS = 1_000  # Results of one search, including deleted vectors.
_MAX_DEAD_SHARE = 0.3
_GPU_SCRATCH = 256 << 20  # Bytes of GPU memory, which the engine leaves free.
_STEP = 4  # Vectors added per lock; each takes 1 ms in a graph of a million vectors.
_PAUSE = 0.0005  # Seconds between two steps, in which lookups can acquire the lock.
ReadVectors = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""Returns the next vectors with numbers above the argument: numbers `[n]`, and vectors `[n, dim]`; empty at the end."""


@dataclass(frozen=True, slots=True)
class FaissGpu:
    """FAISS's resources on a GPU. Hold `lock` during every call of FAISS: even searches are not thread-safe."""

    resources: Any
    lock: Any


@functools.cache
def gpu_resources() -> FaissGpu | None:
    import faiss

    if faiss.get_num_gpus() == 0:
        return None
    resources = faiss.StandardGpuResources()
    # The default of 1.5 GiB would take memory from the engine.
    resources.setTempMemory(_GPU_SCRATCH)
    return FaissGpu(resources, threading.RLock())


class _NumberedIndex:
    def __init__(self, dim: int, *, large: bool) -> None:
        self.large = large
        self.gpu = gpu_resources() if large else None
        self._lock: Any = self.gpu.lock if self.gpu is not None else nullcontext()
        self._index = self._new_index(dim)
        self._no_vectors = np.empty((0, dim), np.float32)
        self._numbers = np.empty(64, np.int64)
        self._count = 0

    def _new_index(self, dim: int) -> Any:
        import faiss

        if self.gpu is not None:
            with self._lock:
                return faiss.GpuIndexFlatIP(self.gpu.resources, dim)
        if not self.large:
            return faiss.IndexFlatIP(dim)
        index = faiss.IndexHNSWFlat(dim, _LINKS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efSearch = _EF_SEARCH
        index.hnsw.efConstruction = _EF_CONSTRUCTION
        return index

    def __del__(self) -> None:
        # An index on a GPU releases its memory here, which requires the lock.
        with getattr(self, "_lock", nullcontext()):
            self._index = None

    def __len__(self) -> int:
        return self._count

    @property
    def numbers(self) -> np.ndarray:
        return self._numbers[: self._count]

    @property
    def last_number(self) -> int:
        return int(self._numbers[self._count - 1]) if self._count else 0

    def has(self, number: int) -> bool:
        place = int(np.searchsorted(self.numbers, number))
        return place < self._count and int(self._numbers[place]) == number

    def add(self, numbers: np.ndarray, vectors: np.ndarray) -> None:
        fresh = numbers > self.last_number
        numbers, end = numbers[fresh], self._count + int(fresh.sum())
        while end > len(self._numbers):
            self._numbers = np.concatenate([self._numbers, np.empty_like(self._numbers)])
        if len(numbers):
            with self._lock:
                self._index.add(np.ascontiguousarray(vectors[fresh], dtype=np.float32))
        self._numbers[self._count : end] = numbers
        self._count = end

    def search(self, vector: np.ndarray, limit: int, deleted_numbers: Set[int]) -> tuple[list[int], np.ndarray]:
        if not self._count:
            return [], self._no_vectors
        # Search again with more results if deleted vectors take the places of neighbours.
        farthest = min(max(_MAX_RESULTS, limit), self._count)
        wanted = min(2 * limit if deleted_numbers else limit, farthest)
        while True:
            with self._lock:
                _, places = self._index.search(vector[None].astype(np.float32), wanted)
            found = places[0][places[0] >= 0]
            numbers = self._numbers[found].tolist()
            remaining = [at for at, number in enumerate(numbers) if number not in deleted_numbers][:limit]
            if len(remaining) == limit or wanted == farthest:
                break
            wanted = min(4 * wanted, farthest)
        if not remaining:
            return [], self._no_vectors
        with self._lock:
            return [numbers[at] for at in remaining], self._index.reconstruct_batch(found[remaining])


class VectorIndex:
    """Finds the nearest unit vectors by cosine. Thread-safe."""

    def __init__(self, dim: int, flat_limit: int = FLAT_LIMIT) -> None:
        self._dim = dim
        self._flat_limit = flat_limit
        self._lock = threading.Lock()
        self._segment = _NumberedIndex(dim, large=False)
        self._dead: set[int] = set()
        self._removed: list[int] | None = None

    def __len__(self) -> int:
        with self._lock:
            return len(self._segment) - len(self._dead)

    @property
    def is_graph(self) -> bool:
        return self._segment.large and not self.on_gpu

    @property
    def on_gpu(self) -> bool:
        return self._segment.gpu is not None

    def add(self, numbers: np.ndarray, vectors: np.ndarray) -> None:
        """Add vectors, `[n, dim]`, with the store's ascending numbers. Vectors that the index already has are skipped."""
        step = _STEP if self.is_graph else max(1, len(numbers))
        for start in range(0, len(numbers), step):
            if start:
                time.sleep(_PAUSE)
            with self._lock:
                self._segment.add(numbers[start : start + step], vectors[start : start + step])

    def remove(self, numbers: Iterable[int]) -> None:
        with self._lock:
            for number in numbers:
                if self._removed is not None:
                    self._removed.append(number)
                if self._segment.has(number):
                    self._dead.add(number)

    def search(self, vector: np.ndarray, limit: int) -> tuple[list[int], np.ndarray]:
        """Return the numbers of the nearest vectors, and these vectors, `[n, dim]`, nearest first."""
        with self._lock:
            return self._segment.search(vector, limit, self._dead)

    def needs_rebuild(self) -> bool:
        with self._lock:
            total, deleted_numbers = len(self._segment), len(self._dead)
            if deleted_numbers > 100 and deleted_numbers > _MAX_DEAD_SHARE * total:
                return True
            return not self._segment.large and total > self._flat_limit

    def rebuild(self, read: ReadVectors, stop: Callable[[], bool] = lambda: False) -> bool:
        """Build the index again from the vectors in the store, which `read` returns.

        `stop` is called after each batch. If it returns True, the old index stays, and the result is False.
        """
        with self._lock:
            self._removed = []
            large = len(self._segment) - len(self._dead) > self._flat_limit
        segment = _NumberedIndex(self._dim, large=large)
        try:
            while len((part := read(segment.last_number))[0]):
                segment.add(*part)
                if stop():
                    return False
            with self._lock:
                while len((part := read(segment.last_number))[0]):
                    segment.add(*part)
                self._dead = {number for number in self._removed if segment.has(number)}
                self._segment = segment
            return True
        finally:
            with self._lock:
                self._removed = None
