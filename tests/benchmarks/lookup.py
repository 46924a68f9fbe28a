"""Search in `VectorIndex` against bare FAISS, in one run, interleaved: one query at a time, as the proxy asks.

python -m tests.benchmarks.lookup [--sizes 1000,100000] [--dead 0.1]
"""

import argparse
import time

import faiss
import numpy as np

from index.vectors import EF_SEARCH, FLAT_LIMIT, VectorIndex

DIM = 384
NEAREST = 5
QUERIES = 1000


def unit_rows(generator: np.random.Generator, count: int, centres: np.ndarray) -> np.ndarray:
    """Vectors around common centres, `[count, DIM]`, as questions lie around topics."""
    rows = centres[generator.integers(len(centres), size=count)]
    rows = rows + 0.6 / np.sqrt(DIM) * generator.standard_normal(rows.shape, dtype=np.float32)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def bare(vectors: np.ndarray) -> "faiss.Index":
    """The FAISS index that one would build by hand over the same vectors, with the same parameters."""
    kind = faiss.IndexFlatIP(DIM)
    if len(vectors) > FLAT_LIMIT:
        kind = faiss.IndexHNSWFlat(DIM, 32, faiss.METRIC_INNER_PRODUCT)
        kind.hnsw.efSearch = EF_SEARCH
    kind.add(vectors)
    return kind


def measure(size: int, dead: float) -> None:
    generator = np.random.default_rng(size)
    centres = generator.standard_normal((max(10, size // 50), DIM), dtype=np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    vectors = unit_rows(generator, size, centres)
    queries = unit_rows(generator, QUERIES, centres)
    index = VectorIndex(DIM)
    ids = [f"{number:032x}" for number in range(size)]
    index.add(ids, vectors)
    gone = int(dead * size)
    index.remove(ids[:gone])
    floor = bare(vectors[gone:])
    exact = faiss.IndexFlatIP(DIM)
    exact.add(vectors[gone:])

    # A pass of its own: a full scan between two timed searches would leave them with cold caches.
    nearest = [ids[gone + int(exact.search(query[None], 1)[1][0, 0])] for query in queries]
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    searches = {
        "ours": lambda query: index.search(query, NEAREST),
        "bare": lambda query: floor.search(query[None], NEAREST),
    }
    for number, query in enumerate(queries):
        for name in sorted(searches, reverse=bool(number % 2)):
            start = time.perf_counter()
            searches[name](query)
            times[name].append(time.perf_counter() - start)
    right = sum(index.search(query, 1)[0][0] == id for query, id in zip(queries, nearest, strict=True))
    ours, base = (np.percentile(times[name], (50, 99)) * 1e3 for name in ("ours", "bare"))
    print(
        f"{size:>9,} {dead:>6.0%} {ours[0]:>9.3f} {base[0]:>9.3f} {ours[0] / base[0]:>6.2f}"
        f" {ours[1]:>9.3f} {base[1]:>9.3f} {ours[1] / base[1]:>6.2f} {right / QUERIES:>10.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1000,20000,100000")
    parser.add_argument("--dead", type=float, default=0.1, help="share of deleted vectors, beside 0")
    arguments = parser.parse_args()
    faiss.omp_set_num_threads(1)
    print("  entries   dead   p50 ms   bare p50  ratio   p99 ms   bare p99  ratio   nearest@1")
    for size in map(int, arguments.sizes.split(",")):
        for dead in sorted({0.0, arguments.dead}):
            measure(size, dead)


if __name__ == "__main__":
    main()
