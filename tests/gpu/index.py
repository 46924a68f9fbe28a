"""The index of questions on a GPU, compared with an exact search on the CPU."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from tests.gpu.check import Check, Figures, Missed, NotHere
from tests.gpu.scale import scale_of

DIM = 384
MORE = 2000
"""Vectors that are added after a rebuild, the last `SINGLE` of them one by one."""
SINGLE = 20
PART = 20_000
QUERIES = 200
NEAREST = 3
ROUNDING = 1e-6
"""Neighbours whose similarities differ by less may change places."""


def neighbours(device: torch.device) -> Figures:
    try:
        import faiss
    except ModuleNotFoundError:
        raise NotHere("faiss is not installed") from None
    from kvproxy.index.search.vector_index import VectorIndex

    on_gpu = device.type == "cuda"
    if on_gpu and not getattr(faiss, "get_num_gpus", lambda: 0)():
        raise NotHere("this faiss has no GPU support: install kvproxy[gpu]")
    count = scale_of(device).vectors
    chance = np.random.default_rng(0)
    vectors = _unit(chance.standard_normal((count + MORE, DIM), dtype=np.float32))
    numbers = np.arange(1, len(vectors) + 1)
    noise = chance.standard_normal((QUERIES, DIM), dtype=np.float32) * 0.02
    queries = _unit(chance.choice(vectors, QUERIES) + noise)

    index = VectorIndex(DIM, flat_limit=count // 2 if on_gpu else 2 * count)
    index.add(numbers, vectors)
    on_cpu = [_seconds(partial(index.search, query, NEAREST)) for query in queries[:SINGLE]]
    _, expected = faiss.knn(queries, vectors, NEAREST, metric=faiss.METRIC_INNER_PRODUCT)

    def part(start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        return numbers[start:end], vectors[start:end]

    last = len(vectors) - SINGLE
    built = _seconds(lambda: index.rebuild(lambda after: part(after, min(after + PART, count))))
    at_once = _seconds(partial(index.add, *part(count, last)))
    one_by_one = [_seconds(partial(index.add, *part(at, at + 1))) for at in range(last, len(vectors))]
    index.search(queries[0], NEAREST)
    alone = [_seconds(partial(index.search, query, NEAREST)) for query in queries]
    began = time.perf_counter()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda query: index.search(query, NEAREST), queries))
    together = time.perf_counter() - began

    places = np.array([numbers for numbers, _ in found]) - 1
    similarities = np.array([near @ query for (_, near), query in zip(found, queries, strict=True)])
    same_nearest = _same(places[:, :1], expected[:, :1], queries, vectors)
    same_set = _same(places, expected, queries, vectors)
    wrong = float(np.abs(similarities - np.einsum("qnd,qd->qn", vectors[places], queries)).max())
    figures = {
        "vectors": f"{len(index):,}, on the {'GPU' if index.on_gpu else 'CPU'}, faiss {faiss.__version__}",
        "built": f"{built:.1f} s, {MORE - SINGLE:,} more in {at_once:.2f} s, then {_milliseconds(one_by_one)} each",
        "a search on the CPU": _milliseconds(on_cpu),
        "a search": f"{_milliseconds(alone)}, {together / QUERIES * 1e3:.2f} ms with four threads",
        "same nearest": f"{same_nearest:.3f} of {QUERIES}",
        f"same nearest {NEAREST}": f"{same_set:.3f}, similarities within {wrong:.0e}",
    }
    if on_gpu and not index.on_gpu:
        raise Missed("the index is not on the GPU", figures)
    if min(same_nearest, same_set) < 1.0 or wrong > ROUNDING:
        raise Missed("neighbours differ from those on the CPU", figures)
    return figures


def _unit(vectors: np.ndarray) -> np.ndarray:
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _milliseconds(times: list[float]) -> str:
    return f"{statistics.median(times) * 1e3:.2f} ms"


def _same(found: np.ndarray, expected: np.ndarray, queries: np.ndarray, vectors: np.ndarray) -> float:
    """Share of queries whose neighbours are the same set, or have the same similarities within float rounding."""
    same = 0
    for query, ours, theirs in zip(queries.astype(np.float64), found, expected, strict=True):
        difference = np.sort(vectors[ours] @ query) - np.sort(vectors[theirs] @ query)
        same += set(ours) == set(theirs) or bool(np.abs(difference).max() < ROUNDING)
    return same / len(queries)


CHECKS = (Check("the index of questions", 60, neighbours, rehearsed=True),)
