"""Calls of FAISS's GPU index, with a double for it."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import pytest

from kvproxy.index.search import vector_index
from kvproxy.index.search.vector_index import VectorIndex
from tests.index.search.test_vector_index import DIM, unit


class Resources:
    """FAISS's resources with their default of 1.5 GiB."""

    temporary = 1536 << 20

    def setTempMemory(self, size: int) -> None:
        self.temporary = size


class FlatOnGpu:
    """A flat index that records calls that overlap."""

    overlaps: list[str]
    busy: threading.Lock

    def __init__(self, resources: Resources, dim: int) -> None:
        self._flat = faiss.IndexFlatIP(dim)

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            if not self.busy.acquire(blocking=False):
                self.overlaps.append(name)
                self.busy.acquire()
            try:
                time.sleep(0)
                return getattr(self._flat, name)(*arguments)
            finally:
                self.busy.release()

        return call


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FlatOnGpu]]:
    FlatOnGpu.overlaps, FlatOnGpu.busy = [], threading.Lock()
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    monkeypatch.setattr(faiss, "StandardGpuResources", Resources, raising=False)
    monkeypatch.setattr(faiss, "GpuIndexFlatIP", FlatOnGpu, raising=False)
    vector_index.gpu_resources.cache_clear()
    yield FlatOnGpu
    vector_index.gpu_resources.cache_clear()


def index_of(count: int) -> VectorIndex:
    """A large index, whose vectors are on the GPU."""
    index, vectors, numbers = VectorIndex(DIM, flat_limit=50), unit(count), np.arange(1, count + 1)
    index.add(numbers, vectors)
    assert index.rebuild(lambda after: (numbers[after:], vectors[after:]))
    assert index.on_gpu
    return index


def test_calls_of_a_gpu_index_never_overlap_and_find_the_nearest(on_gpu: type[FlatOnGpu]) -> None:
    indexes = [index_of(100) for _ in range(3)]
    queries = unit(60, seed=2)

    def look(number: int) -> int:
        return indexes[number % 3].search(queries[number], 1)[0][0]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(look, range(60)))
    assert not on_gpu.overlaps
    assert found == [int((unit(100) @ query).argmax()) + 1 for query in queries]
    index, more = indexes[0], unit(200, seed=1)
    index.add(np.arange(101, 301), more)
    assert index.search(more[7], 1)[0][0] == 108
    index.remove([108])
    assert index.search(more[7], 1)[0][0] != 108
    assert len(index) == 299
    found = vector_index.gpu_resources()
    assert found is not None
    assert found.resources.temporary == 256 << 20
