"""Search among many stored questions beside bare FAISS over the same graph: latency, and nearest neighbours found.

python -m tests.benchmarks.lookup [--sizes 1000 100000 1000000] [--queries 1000] [--folder FOLDER]

Bare FAISS searches the same index. Building its graph takes many minutes for a million entries. The first run writes 5 GB.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from kvproxy.index.search.vector_search import FaissSearch
from kvproxy.index.store import Store
from tests.benchmarks.options import read_options
from tests.benchmarks.stored_questions import DIM, EMBEDDER, FOLDER, NAMESPACE, QuestionVectors, prepare_store

NEAREST, PART = 5, 20_000


def exact_nearest(neighbours: FaissSearch, queries: np.ndarray) -> np.ndarray:
    """Return the number of the nearest vector to each query, by comparing with all vectors."""
    best, numbers, after = np.full(len(queries), -2.0, np.float32), np.zeros(len(queries), np.int64), 0
    while len((part := neighbours.stored_vectors(NAMESPACE, after, PART))[0]):
        scores, places = faiss.knn(queries, part[1], 1, metric=faiss.METRIC_INNER_PRODUCT)
        better = scores[:, 0] > best
        best[better], numbers[better] = scores[better, 0], part[0][places[better, 0]]
        after = int(part[0][-1])
    return numbers


def sample(store: Store, count: int) -> np.ndarray:
    """Return vectors from all over the namespace, `[count, DIM]`."""
    sql = "select number, vector from vectors where number % :step = 0 order by number limit :count"
    rows = store.database.query(sql, {"step": max(1, store.count() // count), "count": count})
    return np.stack([np.frombuffer(row["vector"], np.float32) for row in rows])


def latencies(searches: dict[str, Callable[[int], Any]], queries: int) -> dict[str, np.ndarray]:
    """Return the p50 and p99 of each search in milliseconds, in turn."""
    times: dict[str, list[float]] = {name: [] for name in searches}
    names = list(searches)
    for place in range(queries):
        for turn in range(len(names)):
            name = names[(place + turn) % len(names)]
            start = time.perf_counter()
            searches[name](place)
            times[name].append(time.perf_counter() - start)
    return {name: np.percentile(values, (50, 99)) * 1e3 for name, values in times.items()}


def measure(folder: Path, size: int, count: int) -> None:
    """Print the row of one size."""
    with contextlib.closing(prepare_store(folder, size)) as store:
        neighbours = FaissSearch(store, EMBEDDER, DIM)
        neighbours.load()
        neighbours.wait_for_rebuilds()
        queries = QuestionVectors(folder, size + 1).moved(sample(store, min(count, size)))
        index, nearest = neighbours.indexes[NAMESPACE], exact_nearest(neighbours, queries)
        bare = index._segment._index
        faiss.omp_set_num_threads(1)
        times = latencies(
            {
                "kvproxy": lambda place: index.search(queries[place], NEAREST),
                "bare": lambda place: bare.search(queries[place : place + 1], NEAREST),
            },
            len(queries),
        )
        faiss.omp_set_num_threads(os.cpu_count() or 1)
        neighbours.close()
        right = sum(index.search(query, 1)[0][0] == number for query, number in zip(queries, nearest, strict=True))
    (p50, p99), (bare_p50, bare_p99) = times["kvproxy"], times["bare"]
    print(
        f"| {size:,} | {p50:.3f} ({p50 / bare_p50:.2f}) | {p99:.3f} ({p99 / bare_p99:.2f}) | {right / len(queries):.3f} |",
        flush=True,
    )


def main() -> None:
    options = read_options(__doc__, sizes=[1_000, 100_000, 1_000_000], queries=1_000, folder=FOLDER)
    print("In brackets: ratio to bare FAISS")
    print("| entries | p50, ms | p99, ms | nearest found |\n|---|---|---|---|")
    for size in options.sizes:
        measure(options.folder, size, options.queries)


if __name__ == "__main__":
    main()
