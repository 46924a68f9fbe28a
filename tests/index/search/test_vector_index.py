"""Vector search is exact in flat indexes and nearly so in graphs, also during background work."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.index.search import vector_index
from kvproxy.index.search.vector_index import VectorIndex
from tests.index.entries import indexed_numbers

DIM = 16


def unit(count: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class Rows:
    """Vectors by number, read in parts like those of a store."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.kept = dict(enumerate(vectors, 1))

    def __call__(self, after: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = sorted(number for number in self.kept if number > after)[:100]
        return np.array(numbers, np.int64), np.array([self.kept[number] for number in numbers], np.float32)

    def nearest(self, query: np.ndarray, limit: int) -> list[int]:
        return sorted(self.kept, key=lambda number: -float(self.kept[number] @ query))[:limit]


def numbers(count: int, start: int = 1) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.int64)


KINDS = st.sampled_from(["add", "add", "remove some", "remove nearest", "work"])
STEPS = st.lists(st.tuples(KINDS, st.integers(1, 40)), min_size=1, max_size=25)


@settings(deadline=None, max_examples=60)
@given(STEPS, st.sampled_from([10, 1000]))
def test_a_search_agrees_with_a_sorted_list(steps: list[tuple[str, int]], flat_limit: int) -> None:
    rows, index, last = Rows(np.empty((0, DIM))), VectorIndex(DIM, flat_limit=flat_limit), 0
    query = unit(1, 12345)[0]
    for step, count in steps:
        if step == "add":
            vectors = unit(count, last)
            rows.kept |= dict(zip(range(last + 1, last + count + 1), vectors, strict=True))
            index.add(numbers(count, last + 1), vectors)
            last += count
        elif step != "work":
            some = [number for number in rows.kept if number % 7 == count % 7]
            gone = rows.nearest(query, count) if step == "remove nearest" else some
            for number in gone:
                del rows.kept[number]
            index.remove([*gone, last + 99])
        elif index.needs_rebuild():
            assert index.rebuild(rows)
        assert indexed_numbers(index) == set(rows.kept)
        assert len(index) == len(rows.kept)
    # A small graph is exact too.
    assert index.search(query, 5)[0] == rows.nearest(query, 5)


def test_lookups_and_changes_continue_during_a_rebuild() -> None:
    vectors = unit(2000)
    rows, index = Rows(vectors[:1000]), VectorIndex(DIM, flat_limit=500)
    index.add(numbers(1000), vectors[:1000])
    reached, go_on = threading.Event(), threading.Event()

    def source(after: int) -> Any:
        if after >= 500:
            reached.set()
            assert go_on.wait(300)
        return rows(after)

    work = threading.Thread(target=index.rebuild, args=(source,))
    work.start()
    assert reached.wait(300)
    assert index.search(vectors[7], 1)[0][0] == 8
    for number in (3, 700):  # The new graph has read the first, but not the second.
        del rows.kept[number]
    index.remove([3, 700])
    rows.kept |= dict(zip(range(1001, 2001), vectors[1000:], strict=True))
    index.add(numbers(500, 1001), vectors[1000:1500])
    assert index.search(vectors[1200], 1)[0][0] == 1201
    assert 700 not in index.search(vectors[699], 5)[0]
    go_on.set()
    work.join()
    # Vectors that the rebuild read before they were added are not duplicated.
    index.add(numbers(500, 1501), vectors[1500:])
    assert index.is_graph
    assert indexed_numbers(index) == set(rows.kept)
    assert len(index) == 1998
    found = [index.search(vectors[number], 1)[0][0] for number in range(0, 2000, 9)]
    assert np.mean([one == number + 1 for one, number in zip(found, range(0, 2000, 9), strict=True)]) > 0.97


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
