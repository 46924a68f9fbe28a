"""Vectors with their numbers in one FAISS index, which only ever grows."""

import functools
import threading
from collections.abc import Set
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Kind = Literal["float32", "fp16", "int8"]
EF_SEARCH = 128  # Graph nodes kept while searching; FAISS's own 16 misses near neighbours of clustered questions.
_LINKS = 32
# Candidates for the links of a new node. With FAISS's own 40, every sixth of 120,000 questions in dense clusters had links to
# others but none from them, so that it could not be found; with 100 every twentieth, at the same time of a search.
_EF_CONSTRUCTION = 100
# Beyond this, a search no longer looks for living neighbours behind dead ones: in a graph it would take the time of them all.
_FARTHEST = 1_000
_TEMPORARY = 256 << 20  # Bytes of GPU memory that FAISS keeps for itself; the engine leaves them free.


class Segment:
    """Unit vectors by number; numbers only rise.

    Args:
        dim: width of the vectors.
        kind: how they are kept: `fp16` takes half the memory, `int8` a quarter, and their scores are rounded.
        graph: search approximately by a graph (HNSW), or on a GPU where FAISS sees one; else compare with every vector.
        index: a FAISS index that was made so before, with its numbers.
    """

    def __init__(
        self, dim: int, kind: Kind, *, graph: bool, index: Any = None, numbers: np.ndarray | None = None
    ) -> None:
        self.dim = dim
        self.kind = kind
        # A component of a unit vector has a deviation of 1 / sqrt(dim): eight of them fill the range of a byte.
        self._scale = 127 / min(1.0, 8 / dim**0.5) if kind == "int8" else 1.0
        # A graph that was made before is searched where it lies, on the CPU, and is saved again when it has grown.
        self._gpu = gpu() if graph and index is None else None
        # Indexes on the CPU are guarded by whoever owns them.
        self._turn: Any = self._gpu.lock if self._gpu is not None else nullcontext()
        self.index = index if index is not None else self._make(graph)
        self._numbers = np.empty(64, np.int64) if numbers is None else numbers.astype(np.int64)
        self._count = 0 if numbers is None else len(numbers)

    def _make(self, graph: bool) -> Any:
        import faiss

        if self._gpu is not None:
            config = faiss.GpuIndexFlatConfig()
            config.useFloat16 = self.kind != "float32"
            with self._turn:
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
            index.is_trained = True  # Neither code learns anything from the data.
        if graph:
            index.hnsw.efSearch = EF_SEARCH
            index.hnsw.efConstruction = _EF_CONSTRUCTION
        return index

    @property
    def on_gpu(self) -> bool:
        """Whether the vectors lie on a GPU: adding any copies all of them, and files cannot hold them."""
        return self._gpu is not None

    @property
    def exact(self) -> bool:
        """Whether vectors are kept, and cosines computed, as they are in the store."""
        return self.kind == "float32" and not self.on_gpu

    def __del__(self) -> None:
        # Its memory goes back to FAISS's resources, which is a call like any other.
        with getattr(self, "_turn", nullcontext()):
            self.index = None

    def __len__(self) -> int:
        return self._count

    @property
    def numbers(self) -> np.ndarray:
        """`[n]` int64, rising."""
        return self._numbers[: self._count]

    @property
    def last(self) -> int:
        """The highest number, 0 without any."""
        return int(self._numbers[self._count - 1]) if self._count else 0

    def has(self, number: int) -> bool:
        place = int(np.searchsorted(self.numbers, number))
        return place < self._count and int(self._numbers[place]) == number

    def add(self, numbers: np.ndarray, vectors: np.ndarray) -> None:
        """Append vectors, `[n, dim]` float32."""
        while self._count + len(numbers) > len(self._numbers):
            self._numbers = np.concatenate([self._numbers, np.empty(max(64, len(self._numbers)), np.int64)])
        with self._turn:
            self.index.add(self.scaled(vectors))
        self._numbers[self._count : self._count + len(numbers)] = numbers
        self._count += len(numbers)

    def scaled(self, vectors: np.ndarray) -> np.ndarray:
        """As the index takes them, contiguous float32: whole numbers for `int8`."""
        if self._scale == 1.0:
            return np.ascontiguousarray(vectors, dtype=np.float32)
        return np.clip(np.rint(vectors * self._scale), -127, 127).astype(np.float32)

    def vectors(self, start: int, stop: int) -> np.ndarray:
        """Vectors by place, `[stop - start, dim]` float32, as they were kept."""
        if start == stop:
            return np.empty((0, self.dim), np.float32)
        with self._turn:
            rows: np.ndarray = self.index.reconstruct_n(start, stop - start)
        return rows / np.float32(self._scale)

    def search(self, vector: np.ndarray, limit: int, dead: Set[int]) -> list[tuple[int, float]]:
        """The nearest (number, cosine) that are not dead, nearest first, `limit` at most; fewer behind very many dead."""
        if not self._count:
            return []
        query = self.scaled(vector[None])
        # Asking for as many more as there are tombstones would cost a search of them all; few are near any one query.
        farthest = min(max(_FARTHEST, limit), self._count)
        wanted = min(2 * limit if dead else limit, farthest)
        while True:
            with self._turn:
                scores, places = self.index.search(query, wanted)
            if self._scale != 1.0:
                scores /= self._scale * self._scale
            near = zip(self._numbers[places[0]].tolist(), scores[0].tolist(), places[0].tolist(), strict=True)
            # FAISS fills up with -1 what a graph did not reach.
            found = [each for each in near if each[2] >= 0 and each[0] not in dead]
            if len(found) >= limit or wanted == farthest:
                return self._scored(vector, found[:limit])
            wanted = min(4 * wanted, farthest)

    def _scored(self, vector: np.ndarray, found: list[tuple[int, float, int]]) -> list[tuple[int, float]]:
        """The (number, cosine) of (number, FAISS's own score, place)."""
        if not self.exact or not found:
            return [(number, score) for number, score, _ in found]
        # FAISS adds in another order than NumPy, and what is decided must not depend on who adds.
        kept = self.index.reconstruct_batch(np.array([place for _, _, place in found]))
        return [(each[0], float(row @ vector)) for each, row in zip(found, kept, strict=True)]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as FAISS uses it. Its indexes are unsafe across threads even where they only read, so each call takes the lock.

    Attributes:
        resources: FAISS's `StandardGpuResources`, shared by all indexes.
        lock: held by whoever calls any index on the GPU.
    """

    resources: Any
    lock: Any


@functools.cache
def gpu() -> Gpu | None:
    """The GPU, None where FAISS is built without or sees none."""
    import faiss

    if faiss.get_num_gpus() == 0:
        return None
    resources = faiss.StandardGpuResources()
    # By default it takes 1.5 GiB, which the engine's blocks can use better.
    resources.setTempMemory(_TEMPORARY)
    return Gpu(resources, threading.RLock())
