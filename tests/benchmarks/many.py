"""Stores of many questions for `lookup`, `cold_start` and `growing`, made once and kept in a folder.

The vectors are those of 2,200 questions of this repository, moved along differences between them: new ones lie as wordings of
real questions do, in clusters and in few directions, which is harder for a graph than noise around random centres.
"""

import contextlib
import ctypes
import gc
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import faiss
import numpy as np

from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.search.faiss_segment import Kind
from kvproxy.index.search.neighbours import FaissNeighbours
from kvproxy.index.store import NewEntry, SqliteStore
from tests.index.entries import make_entry
from training.demo.corpus import load_pairs

DIM = 384
EMBEDDER = "e"
NAMESPACE = "n"
FOLDER = Path.home() / ".cache" / "kvproxy-benchmarks"
_BATCH = 5_000
_OPPOSITES = Path(__file__).parents[1] / "index" / "data" / "opposites.jsonl"
_ANSWER = json.dumps({"choices": [{"message": {"content": "word " * 100}}]}).encode()
T = TypeVar("T")


class Questions:
    """Vectors of questions, the same ones for the same seed.

    Args:
        folder: where the vectors of the real ones are kept.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        kept = folder / "questions.npy"
        if not kept.exists():
            folder.mkdir(parents=True, exist_ok=True)
            np.save(kept, load_embedder().embed(_texts()))
        self._real = np.load(kept)
        self._generator = np.random.default_rng(seed)

    def rows(self, count: int) -> np.ndarray:
        """`[count, DIM]` float32 of unit length, around all real ones."""
        return self.moved(self._draw(count), 0.1, 0.7)

    def moved(self, vectors: np.ndarray, least: float = 0.1, most: float = 0.3) -> np.ndarray:
        """Other wordings of the same, at cosines around 0.96 by default."""
        count = len(vectors)
        by = self._generator.uniform(least, most, (count, 1)).astype(np.float32)
        found: np.ndarray = vectors + by * (self._draw(count) - self._draw(count))
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        return found

    def _draw(self, count: int) -> np.ndarray:
        drawn: np.ndarray = self._real[self._generator.integers(len(self._real), size=count)]
        return drawn


def _texts() -> list[str]:
    demo = [text for pair in load_pairs() for text in (*pair.wordings, *pair.held_out)]
    opposites = [json.loads(line) for line in _OPPOSITES.read_text().splitlines()]
    return sorted({*demo, *(pair[side] for pair in opposites for side in "ab")})


def prepare(folder: Path, entries: int, kind: Kind = "float32") -> Path:
    """A store of one namespace, with its graph where it is large enough for one; made where the folder lacks it."""
    path = folder / f"{entries}.db"
    _fill(folder, path, entries)
    if kind != "float32":
        # The same database under another name has graphs of its own.
        path = folder / f"{entries}-{kind}.db"
        with contextlib.suppress(FileExistsError):
            path.symlink_to(f"{entries}.db")
    with opened(path, kind, threads=faiss.omp_get_max_threads()) as (_, near):
        began = time.perf_counter()
        if near.indexes[NAMESPACE].due() is not None:
            near.settle()
            print(f"{entries:,} entries: {kind} graph built in {time.perf_counter() - began:.0f} s", flush=True)
    return path


def _fill(folder: Path, path: Path, entries: int) -> None:
    questions = Questions(folder, entries)
    store = SqliteStore(path)
    began, there = time.perf_counter(), store.count()
    for start in range(0, entries, _BATCH):
        vectors = questions.rows(min(_BATCH, entries - start))
        if start < there:
            continue
        made = [
            make_entry(f"question {start + place}", request=b"{}" * 100, response=_ANSWER)
            for place in range(len(vectors))
        ]
        store.put_many([NewEntry(entry, vector, EMBEDDER) for entry, vector in zip(made, vectors, strict=True)])
    store.close()
    if there < entries:
        print(f"{entries:,} entries written in {time.perf_counter() - began:.0f} s", flush=True)


@contextlib.contextmanager
def opened(
    path: Path, kind: Kind = "float32", *, threads: int | None = None
) -> Iterator[tuple[SqliteStore, FaissNeighbours]]:
    """The store with its neighbours, loaded."""
    store = SqliteStore(path)
    near = FaissNeighbours(store, EMBEDDER, DIM, kind, threads=threads)
    near.load()
    try:
        yield store, near
    finally:
        near.close()
        store.close()


def weighed(make: Callable[[], T]) -> tuple[T, float]:
    """What was made, and the MiB that the process grew by."""
    before = resident()
    made = make()
    return made, (resident() - before) / 2**20


def resident() -> int:
    """Bytes of the process in memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # What is free but not given back is nobody's.
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
