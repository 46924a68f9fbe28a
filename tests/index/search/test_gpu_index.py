"""Calls of FAISS's GPU index, with a double for it."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from kvproxy.index.search import faiss_segment as segments
from kvproxy.index.search.faiss_segment import Segment
from kvproxy.index.search.saved_graphs import SavedGraphs
from kvproxy.index.search.vector_index import VectorIndex
from kvproxy.index.store import SqliteStore

DIM = 8


class Resources:
    """FAISS's resources with their default of 1.5 GiB."""

    temporary = 1536 << 20

    def setTempMemory(self, size: int) -> None:
        self.temporary = size


class FlatOnGpu:
    """A flat index that counts its calls and records overlaps."""

    calls: Counter[str]
    overlaps: list[str]
    busy: threading.Lock

    def __init__(self, resources: Resources, dim: int, config: object) -> None:
        self._flat = faiss.IndexFlatIP(dim)

    def _call(self, name: str, *arguments: Any) -> Any:
        if not self.busy.acquire(blocking=False):
            self.overlaps.append(name)
            self.busy.acquire()
        try:
            self.calls[name] += 1
            time.sleep(0)
            return getattr(self._flat, name)(*arguments)
        finally:
            self.busy.release()

    def add(self, vectors: Any) -> None:
        self._call("add", vectors)

    def search(self, query: Any, count: int) -> Any:
        return self._call("search", query, count)

    def reconstruct_n(self, start: int, count: int) -> Any:
        return self._call("reconstruct_n", start, count)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FlatOnGpu]]:
    FlatOnGpu.calls, FlatOnGpu.overlaps, FlatOnGpu.busy = Counter(), [], threading.Lock()
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    monkeypatch.setattr(faiss, "StandardGpuResources", Resources, raising=False)
    monkeypatch.setattr(faiss, "GpuIndexFlatConfig", type("Config", (), {}), raising=False)
    monkeypatch.setattr(faiss, "GpuIndexFlatIP", FlatOnGpu, raising=False)
    segments.gpu.cache_clear()
    yield FlatOnGpu
    segments.gpu.cache_clear()


def unit(count: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, DIM), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def index_of(count: int, flat_limit: int = 50) -> VectorIndex:
    """An index whose first `count` vectors are in a graph."""
    index, vectors = VectorIndex(DIM, flat_limit=flat_limit), unit(count)
    numbers = np.arange(1, count + 1)
    index.add(numbers, vectors)
    assert index.rebuild(lambda after: (numbers[after:], vectors[after:]))
    return index


def test_a_merge_adds_the_tail_in_one_call(on_gpu: type[FlatOnGpu]) -> None:
    """Each call copies the whole index."""
    index = index_of(100)
    assert index.graph is not None
    assert index.graph.on_gpu
    before = on_gpu.calls["add"]
    index.add(np.arange(101, 301), unit(200, seed=1))
    assert index.merge()
    assert on_gpu.calls["add"] == before + 1
    assert len(index) == len(index.graph) == 300
    assert index.search(unit(200, seed=1)[7], 1)[0][0] == 108


def test_calls_of_a_gpu_index_never_overlap(on_gpu: type[FlatOnGpu]) -> None:
    indexes = [index_of(100) for _ in range(3)]
    queries = unit(60, seed=2)

    def look(number: int) -> int:
        return indexes[number % 3].search(queries[number], 1)[0][0]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(look, range(60)))
    assert not on_gpu.overlaps
    assert found == [int((unit(100) @ query).argmax()) + 1 for query in queries]


def test_faiss_reserves_little_gpu_memory(on_gpu: type[FlatOnGpu]) -> None:
    found = segments.gpu()
    assert found is not None
    assert found.resources.temporary == 256 << 20


def test_a_loaded_graph_stays_on_the_cpu_and_can_be_saved(
    on_gpu: type[FlatOnGpu], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(faiss, "get_num_gpus", lambda: 0)
        segments.gpu.cache_clear()
        made = Segment(DIM, "float32", graph=True)
        made.add(np.arange(1, 81), unit(80))
    segments.gpu.cache_clear()
    adopted = Segment(DIM, "float32", graph=True, index=made.index, numbers=made.numbers)
    assert not adopted.on_gpu
    store = SqliteStore(tmp_path / "cache.db")
    graphs = SavedGraphs(store, "embedder", DIM, "float32")
    adopted.add(np.arange(81, 91), unit(10, seed=3))
    graphs.save("namespace", adopted)
    assert list(graphs.folder.glob("*.faiss"))
    store.close()


def test_a_stopped_rebuild_loses_no_concurrent_deletion() -> None:
    index, vectors = VectorIndex(DIM, flat_limit=1), unit(4)
    index.add(np.arange(1, 5), vectors)
    reading, removing, given_up = threading.Event(), threading.Event(), threading.Event()

    def source(after: int) -> tuple[np.ndarray, np.ndarray]:
        reading.set()
        assert removing.wait(10)
        return np.arange(1, 3), vectors[:2]

    def stop() -> bool:
        given_up.set()
        return True

    thread = threading.Thread(target=lambda: index.rebuild(source, stop))

    def numbers() -> Iterator[int]:
        # The index consumes this iterator while it holds its lock.
        removing.set()
        assert given_up.wait(10)
        thread.join(0.1)
        assert thread.is_alive(), "it did not wait for the lock"
        yield 1

    thread.start()
    assert reading.wait(10)
    index.remove(numbers())
    thread.join(10)
    assert not thread.is_alive()
    assert index.numbers() == {2, 3, 4}
