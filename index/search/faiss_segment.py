"""An append-only FAISS index of numbered vectors."""

import functools
import threading
from collections.abc import Set
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Kind = Literal["float32", "fp16", "int8"]
EF_SEARCH = 128  # Graph nodes visited by a search. FAISS's default of 16 misses neighbours of clustered questions.
_LINKS = 32
# Candidates for the links of a new node. With FAISS's default of 40, no link led to every sixth of 120,000 questions in dense
# clusters; with 100, to every twentieth.
_EF_CONSTRUCTION = 100
_MAX_RESULTS = 1_000  # Results of one search, including tombstones. A search of a graph takes time for each.
_GPU_SCRATCH = 256 << 20  # Bytes of GPU memory for FAISS; the engine leaves them free.


class Segment:
    """Unit vectors by rising numbers.

    Args:
        dim: width of the vectors.
        kind: data type; `fp16` requires half the memory and `int8` a quarter, and both round the scores.
        graph: use a graph (HNSW), or a flat index on a GPU if there is one; False uses a flat index on the CPU.
        index: a loaded FAISS index, with its numbers.
    """

    def __init__(
        self, dim: int, kind: Kind, *, graph: bool, index: Any = None, numbers: np.ndarray | None = None
    ) -> None:
        self.dim = dim
        self.kind = kind
        # A component of a unit vector has a standard deviation of 1 / sqrt(dim). A byte covers eight of them.
        self._scale = 127 / min(1.0, 8 / dim**0.5) if kind == "int8" else 1.0
        # A loaded graph stays on the CPU, and is saved again after it has grown.
        self._gpu = gpu() if graph and index is None else None
        # The owner of an index on the CPU locks it.
        self._lock: Any = self._gpu.lock if self._gpu is not None else nullcontext()
        self.index = index if index is not None else self._make(graph)
        self._numbers = np.empty(64, np.int64) if numbers is None else numbers.astype(np.int64)
        self._count = 0 if numbers is None else len(numbers)

    def _make(self, graph: bool) -> Any:
        import faiss

        if self._gpu is not None:
            config = faiss.GpuIndexFlatConfig()
            config.useFloat16 = self.kind != "float32"
            with self._lock:
                return faiss.GpuIndexFlatIP(self._gpu.resources, self.dim, config)
        metric = faiss.METRIC_INNER_PRODUCT
        index: Any
        if self.kind == "float32":
            index = faiss.IndexHNSWFlat(self.dim, _LINKS, metric) if graph else faiss.IndexFlatIP(self.dim)
        else:
            quantizer = faiss.ScalarQuantizer
            code: Any = quantizer.QT_fp16 if self.kind == "fp16" else quantizer.QT_8bit_direct_signed
            if graph:
                index = faiss.IndexHNSWSQ(self.dim, code, _LINKS, metric)
            else:
                index = faiss.IndexScalarQuantizer(self.dim, code, metric)
            index.is_trained = True  # These codes require no training.
        if graph:
            index.hnsw.efSearch = EF_SEARCH
            index.hnsw.efConstruction = _EF_CONSTRUCTION
        return index

    @property
    def on_gpu(self) -> bool:
        """Whether the index is on a GPU. It cannot be saved, and each addition copies all vectors."""
        return self._gpu is not None

    @property
    def exact(self) -> bool:
        """Whether cosines are bitwise equal to the exact ones."""
        return self.kind == "float32" and not self.on_gpu

    def __del__(self) -> None:
        # FAISS's resources are not thread-safe when the index returns its memory.
        with getattr(self, "_lock", nullcontext()):
            self.index = None

    def __len__(self) -> int:
        return self._count

    @property
    def numbers(self) -> np.ndarray:
        """Rising numbers, `[n]` int64."""
        return self._numbers[: self._count]

    @property
    def last(self) -> int:
        return int(self._numbers[self._count - 1]) if self._count else 0

    def has(self, number: int) -> bool:
        place = int(np.searchsorted(self.numbers, number))
        return place < self._count and int(self._numbers[place]) == number

    def add(self, numbers: np.ndarray, vectors: np.ndarray) -> None:
        """Append vectors, `[n, dim]` float32."""
        while self._count + len(numbers) > len(self._numbers):
            self._numbers = np.concatenate([self._numbers, np.empty(max(64, len(self._numbers)), np.int64)])
        with self._lock:
            self.index.add(self.scaled(vectors))
        self._numbers[self._count : self._count + len(numbers)] = numbers
        self._count += len(numbers)

    def scaled(self, vectors: np.ndarray) -> np.ndarray:
        """Scale vectors to the range of the index, contiguous float32; integers for `int8`."""
        if self._scale == 1.0:
            return np.ascontiguousarray(vectors, dtype=np.float32)
        return np.clip(np.rint(vectors * self._scale), -127, 127).astype(np.float32)

    def vectors(self, start: int, stop: int) -> np.ndarray:
        """Return the vectors at positions, `[stop - start, dim]` float32."""
        if start == stop:
            return np.empty((0, self.dim), np.float32)
        with self._lock:
            rows: np.ndarray = self.index.reconstruct_n(start, stop - start)
        return rows / np.float32(self._scale)

    def search(self, vector: np.ndarray, limit: int, dead: Set[int]) -> list[tuple[int, float]]:
        """Return at most `limit` pairs (number, cosine), nearest first, without the dead numbers."""
        if not self._count:
            return []
        query = self.scaled(vector[None])
        # Few tombstones are near a query: search again with more results only if they hide neighbours.
        farthest = min(max(_MAX_RESULTS, limit), self._count)
        wanted = min(2 * limit if dead else limit, farthest)
        while True:
            with self._lock:
                scores, places = self.index.search(query, wanted)
            if self._scale != 1.0:
                scores /= self._scale * self._scale
            near = zip(self._numbers[places[0]].tolist(), scores[0].tolist(), places[0].tolist(), strict=True)
            # FAISS returns -1 for missing results.
            found = [each for each in near if each[2] >= 0 and each[0] not in dead]
            if len(found) >= limit or wanted == farthest:
                return self._scored(vector, found[:limit])
            wanted = min(4 * wanted, farthest)

    def _scored(self, vector: np.ndarray, found: list[tuple[int, float, int]]) -> list[tuple[int, float]]:
        """Convert (number, score, position) to (number, cosine)."""
        if not self.exact or not found:
            return [(number, score) for number, score, _ in found]
        # FAISS and NumPy add in different orders. Decisions must not depend on the rounding.
        kept = self.index.reconstruct_batch(np.array([place for _, _, place in found]))
        return [(each[0], float(row @ vector)) for each, row in zip(found, kept, strict=True)]


@dataclass(frozen=True, slots=True)
class Gpu:
    """FAISS's resources on a GPU.

    Attributes:
        resources: `StandardGpuResources`, shared by all indexes.
        lock: required for each call of an index on the GPU, since even searches are not thread-safe.
    """

    resources: Any
    lock: Any


@functools.cache
def gpu() -> Gpu | None:
    """Return the GPU; None if FAISS finds no GPU or does not support it."""
    import faiss

    if faiss.get_num_gpus() == 0:
        return None
    resources = faiss.StandardGpuResources()
    # The default is 1.5 GiB, which the engine's blocks need.
    resources.setTempMemory(_GPU_SCRATCH)
    return Gpu(resources, threading.RLock())
