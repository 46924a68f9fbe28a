"""A start over many stored entries of one namespace: with the graph in files, without, and FAISS reading the same graph alone.

python -m tests.benchmarks.cold_start [--entries 100000] [--kind float32]
"""

import argparse
import tempfile
import time
from pathlib import Path

import faiss
import numpy as np

from index.neighbours import FaissNeighbours
from index.segments import Kind
from index.store import Put, ResponseStore
from tests.benchmarks.lookup import DIM, unit_rows
from tests.index.entries import make_entry

BATCH = 5000


def fill(store: ResponseStore, entries: int) -> np.ndarray:
    generator = np.random.default_rng(1)
    centres = generator.standard_normal((max(10, entries // 50), DIM), dtype=np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    answer = b'{"choices": [{"message": {"content": "' + b"word " * 100 + b'"}}]}'
    for start in range(0, entries, BATCH):
        vectors = unit_rows(generator, min(BATCH, entries - start), centres)
        prompts = (f"question {start + number}" for number in range(len(vectors)))
        entry_list = [make_entry(prompt, request=b"{}" * 100, response=answer) for prompt in prompts]
        store.put_many([Put(entry, vector, "e") for entry, vector in zip(entry_list, vectors, strict=True)])
    return vectors[0]


def start(path: Path, kind: Kind, query: np.ndarray) -> tuple[float, float, FaissNeighbours, ResponseStore]:
    """Seconds to open the store, and until the first search is answered."""
    began = time.perf_counter()
    store = ResponseStore(path)
    assert store.missing_vectors("e", 1) == []
    opened = time.perf_counter() - began
    near = FaissNeighbours(store, "e", DIM, kind)
    near.load()
    assert near.search("n", query, 1)[0][1] > 0.999
    return opened, time.perf_counter() - began, near, store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--kind", default="float32")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "responses.db"
        store = ResponseStore(path)
        began = time.perf_counter()
        query = fill(store, arguments.entries)
        print(f"{arguments.entries:,} entries written in {time.perf_counter() - began:.1f} s")
        store.close()
        opened, first, near, store = start(path, arguments.kind, query)
        print(f"without a graph: store open {opened:.2f} s, first answer {first:.2f} s", flush=True)
        began = time.perf_counter()
        near.settle()
        print(f"graph built and kept in the background: {time.perf_counter() - began:.1f} s", flush=True)
        near.close()
        store.close()
        for _ in range(3):
            opened, first, near, store = start(path, arguments.kind, query)
            (file,) = near._graphs.folder.glob("*.faiss")
            began = time.perf_counter()
            faiss.read_index(str(file))
            bare = time.perf_counter() - began
            print(
                f"with the graph: store open {opened:.2f} s, first answer {first:.2f} s;"
                f" FAISS alone reads it in {bare:.2f} s; {file.stat().st_size / 2**20:.0f} MiB",
                flush=True,
            )
            near.close()
            store.close()


if __name__ == "__main__":
    main()
