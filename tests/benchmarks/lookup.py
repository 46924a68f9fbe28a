"""Search in `VectorIndex` against bare FAISS, in one run, interleaved, one query at a time, as the proxy asks; memory of both.

python -m tests.benchmarks.lookup [--sizes 1000,100000] [--dead 0.1] [--kinds float32,fp16,int8]

A million entries take many minutes to build and 8 GiB; with `--copy`, bare FAISS searches a copy of our graph, which halves both.
"""

import argparse
import ctypes
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import faiss
import numpy as np

from index.segments import EF_SEARCH, Kind
from index.vectors import FLAT_LIMIT, Source, VectorIndex

DIM = 384
NEAREST = 5
QUERIES = 1000
PART = 10_000
T = TypeVar("T")


def unit_rows(generator: np.random.Generator, count: int, centres: np.ndarray) -> np.ndarray:
    """Vectors around common centres, `[count, DIM]`, as questions lie around topics."""
    rows = centres[generator.integers(len(centres), size=count)]
    rows += 0.6 / np.sqrt(DIM) * generator.standard_normal(rows.shape, dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32, copy=False)


def bare(vectors: np.ndarray) -> Any:
    """The FAISS index that one would build by hand over the same vectors, with the same parameters."""
    kind: Any = faiss.IndexFlatIP(DIM)
    if len(vectors) > FLAT_LIMIT:
        kind = faiss.IndexHNSWFlat(DIM, 32, faiss.METRIC_INNER_PRODUCT)
        kind.hnsw.efSearch = EF_SEARCH
    for start in range(0, len(vectors), PART):
        kind.add(vectors[start : start + PART])
    return kind


def source_of(vectors: np.ndarray) -> Source:
    """The vectors as a store gives them, under the numbers 1, 2, .."""

    def source(after: int) -> tuple[np.ndarray, np.ndarray]:
        part = vectors[after : after + PART]
        return np.arange(after + 1, after + 1 + len(part)), part

    return source


def ours(vectors: np.ndarray, kind: Kind) -> VectorIndex:
    index = VectorIndex(DIM, kind)
    source, after = source_of(vectors), 0
    while len(vectors) <= FLAT_LIMIT and after < len(vectors):
        numbers, part = source(after)
        index.add(numbers, part)
        after = int(numbers[-1])
    if len(vectors) > FLAT_LIMIT:
        # As at a start without a graph, but without the time in which the tail would be searched.
        index._flat_limit = PART // 2
        index.add(*source(0))
        index.rebuild(source)
    return index


def weighed(make: Callable[[], T]) -> tuple[T, float]:
    """What was made, and the MiB that the process grew by."""
    before = _resident()
    made = make()
    return made, (_resident() - before) / 2**20


def _resident() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # What is free but not given back is nobody's.
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(size: int, dead: float, kind: Kind, copy: bool) -> None:
    generator = np.random.default_rng(size)
    centres = generator.standard_normal((max(10, size // 50), DIM), dtype=np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    vectors = unit_rows(generator, size, centres)
    queries = unit_rows(generator, QUERIES, centres)
    gone = int(dead * size)
    faiss.omp_set_num_threads(os.cpu_count() or 1)
    index, ours_mib = weighed(lambda: ours(vectors, kind))
    index.remove(range(1, gone + 1))
    graph = index.graph if copy and not gone else None
    floor, bare_mib = weighed(lambda: bare(vectors[gone:]) if graph is None else faiss.clone_index(graph.index))
    exact = [int(place) for place in _nearest(vectors[gone:], queries) + gone + 1]
    faiss.omp_set_num_threads(1)
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    searches: dict[str, Callable[[np.ndarray], Any]] = {
        "ours": lambda query: index.search(query, NEAREST),
        "bare": lambda query: floor.search(query[None], NEAREST),
    }
    for number, query in enumerate(queries):
        for name in sorted(searches, reverse=bool(number % 2)):
            start = time.perf_counter()
            searches[name](query)
            times[name].append(time.perf_counter() - start)
    right = sum(index.search(query, 1)[0][0] == number for query, number in zip(queries, exact, strict=True))
    mine, base = (np.percentile(times[name], (50, 99)) * 1e3 for name in ("ours", "bare"))
    print(
        f"{size:>9,} {kind:>8} {dead:>6.0%} {mine[0]:>9.3f} {base[0]:>9.3f} {mine[0] / base[0]:>6.2f}"
        f" {mine[1]:>9.3f} {base[1]:>9.3f} {mine[1] / base[1]:>6.2f} {ours_mib:>8.0f} {bare_mib:>9.0f}"
        f" {ours_mib / max(bare_mib, 1.0):>6.2f} {right / QUERIES:>10.3f}",
        flush=True,
    )


def _nearest(vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
    places: np.ndarray = faiss.knn(queries, vectors, 1, metric=faiss.METRIC_INNER_PRODUCT)[1][:, 0]
    return places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1000,20000,100000")
    parser.add_argument("--dead", type=float, default=0.1, help="share of deleted vectors, beside 0")
    parser.add_argument("--kinds", default="float32", help="how ours are kept; bare FAISS keeps float32")
    parser.add_argument("--copy", action="store_true", help="let bare FAISS search a copy of our graph")
    arguments = parser.parse_args()
    print(
        "  entries     kind   dead    p50 ms   bare p50  ratio   p99 ms  bare p99  ratio      MiB  bare MiB  ratio  nearest@1"
    )
    for size in map(int, arguments.sizes.split(",")):
        for kind in arguments.kinds.split(","):
            for dead in sorted({0.0, arguments.dead}):
                measure(size, dead, kind, arguments.copy)


if __name__ == "__main__":
    main()
