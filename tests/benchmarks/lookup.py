"""Search in a namespace of many questions against bare FAISS over the same graph, in turn, one query at a time; memory of both.

python -m tests.benchmarks.lookup [--sizes 1000,100000,1000000] [--dead 0.1] [--kinds float32,fp16,int8] [--folder FOLDER]

Ours is what a proxy has after a start; bare FAISS reads the file of our graph, or is given the vectors where there is none
(flat). `whole` is what a request waits for: the search with ids and exact scores from SQLite. A first run with a million
entries writes 5 GB and builds the graph, for minutes; later ones, and `cold_start`, find it in the folder.
"""

import argparse
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from kvproxy.index.search.faiss_segment import EF_SEARCH, Kind
from kvproxy.index.search.neighbours import FaissNeighbours
from kvproxy.index.store import SqliteStore
from tests.benchmarks.many import DIM, EMBEDDER, FOLDER, NAMESPACE, Questions, opened, prepare, weighed

NEAREST = 5
QUERIES = 1000
PART = 20_000
HEADER = (
    "  entries     kind   dead    p50 ms   bare p50  ratio   p99 ms  bare p99  ratio  whole p50      MiB  bare MiB  ratio"
    "  nearest@1"
)


def bare(near: FaissNeighbours, vectors: np.ndarray) -> Any:
    """FAISS's own index: the same graph from its file, or the same vectors compared one by one."""
    found = list(near._captured.folder.glob("*.faiss"))
    if not found:
        flat = faiss.IndexFlatIP(DIM)
        flat.add(vectors)
        return flat
    graph: Any = faiss.read_index(str(found[0]))
    graph.hnsw.efSearch = EF_SEARCH
    return graph


def nearest(store: SqliteStore, queries: np.ndarray, dead: int) -> np.ndarray:
    """The number of the nearest living vector to each query, by comparing with all of them."""
    best, numbers = np.full(len(queries), -2.0, np.float32), np.zeros(len(queries), np.int64)
    after = dead
    while len((part := store.vectors(NAMESPACE, EMBEDDER, after=after, limit=PART))[0]):
        scores, places = faiss.knn(queries, part[1], 1, metric=faiss.METRIC_INNER_PRODUCT)
        better = scores[:, 0] > best
        best[better], numbers[better] = scores[better, 0], part[0][places[better, 0]]
        after = int(part[0][-1])
    return numbers


def some(store: SqliteStore, count: int) -> np.ndarray:
    """Vectors from all over the namespace, `[count, DIM]`."""
    numbers = store.vector_ids(NAMESPACE, EMBEDDER)[0]
    places = np.linspace(0, len(numbers) - 1, count).astype(int)
    kept = store.near(NAMESPACE, EMBEDDER, numbers[places].tolist(), vectors=True)
    return np.stack([vector for _, vector in kept.values() if vector is not None])


def timed(searches: dict[str, Callable[[int], Any]], queries: int) -> dict[str, np.ndarray]:
    """p50 and p99 of each in milliseconds, the order changing from query to query."""
    times: dict[str, list[float]] = {name: [] for name in searches}
    names = list(searches)
    for place in range(queries):
        for turn in range(len(names)):
            name = names[(place + turn) % len(names)]
            start = time.perf_counter()
            searches[name](place)
            times[name].append(time.perf_counter() - start)
    return {name: np.percentile(taken, (50, 99)) * 1e3 for name, taken in times.items()}


def measure(folder: Path, size: int, kind: Kind, dead: float) -> None:
    path = prepare(folder, size, kind)
    with contextlib.ExitStack() as stack:
        (store, near), mib = weighed(lambda: stack.enter_context(opened(path, kind)))
        vectors = store.vectors(NAMESPACE, EMBEDDER, limit=PART)[1]
        floor, bare_mib = weighed(lambda: bare(near, vectors))
        queries = Questions(folder, size + 1).moved(some(store, QUERIES))
        for share in sorted({0.0, dead}):
            gone = int(share * size)
            near.indexes[NAMESPACE].remove(range(1, gone + 1))
            row(
                near,
                floor,
                queries,
                nearest(store, queries, gone),
                f"{size:>9,} {kind:>8} {share:>6.0%}",
                mib,
                bare_mib,
            )


def row(
    near: FaissNeighbours, floor: Any, queries: np.ndarray, numbers: np.ndarray, title: str, mib: float, bare_mib: float
) -> None:
    """Measure and print one row; `numbers` are those of the nearest vectors."""
    index = near.indexes[NAMESPACE]
    # FAISS reads a query of `int8` as whole numbers too: unscaled, it would end at once and find nothing.
    ready = index.graph.scaled(queries) if index.graph else queries
    faiss.omp_set_num_threads(1)
    times = timed(
        {
            "ours": lambda place: index.search(queries[place], NEAREST),
            "bare": lambda place: floor.search(ready[place : place + 1], NEAREST),
            "whole": lambda place: near.search(NAMESPACE, queries[place], NEAREST),
        },
        len(queries),
    )
    faiss.omp_set_num_threads(os.cpu_count() or 1)
    right = sum(index.search(query, 1)[0][0] == number for query, number in zip(queries, numbers, strict=True))
    mine, base = times["ours"], times["bare"]
    print(
        f"{title} {mine[0]:>9.3f} {base[0]:>10.3f} {mine[0] / base[0]:>6.2f} {mine[1]:>8.3f} {base[1]:>9.3f}"
        f" {mine[1] / base[1]:>6.2f} {times['whole'][0]:>10.3f} {mib:>8.0f} {bare_mib:>9.0f}"
        f" {mib / max(bare_mib, 1.0):>6.2f} {right / len(queries):>10.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1000,100000,1000000")
    parser.add_argument("--dead", type=float, default=0.0, help="share of deleted vectors, beside 0")
    parser.add_argument("--kinds", default="float32", help="how ours are kept; the graph of bare FAISS is the same")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the stores are kept")
    arguments = parser.parse_args()
    print(HEADER)
    for size in map(int, arguments.sizes.split(",")):
        for kind in arguments.kinds.split(","):
            measure(arguments.folder, size, kind, arguments.dead)


if __name__ == "__main__":
    main()
