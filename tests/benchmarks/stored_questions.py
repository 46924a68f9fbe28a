"""Questions for `lookup` and `postgres_vectors`, created once and kept in a folder.

The vectors are those of 2,200 questions of this repository, moved along differences between them. So new ones lie like
rewordings of real questions, in clusters and in few directions, which is harder for a graph than random vectors.
"""

import json
from pathlib import Path

import numpy as np

from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.store import NewEntry, Store, open_store
from tests.index.entries import make_entry
from tests.index.policies.directions import read_pairs
from training.demo.corpus import load_pairs

DIM, EMBEDDER, NAMESPACE = 384, "e", "n"
FOLDER = Path.home() / ".cache" / "kvproxy-benchmarks"
_BATCH = 5_000
_RESPONSE = json.dumps({"choices": [{"message": {"content": "word " * 100}}]}).encode()


class QuestionVectors:
    """Vectors of questions, equal for equal seeds; the vectors of the real questions are cached in `folder`."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        path = folder / "questions.npy"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            texts = {text for pair in load_pairs() for text in (*pair.wordings, *pair.held_out)}
            opposites = {pair[side] for pair in read_pairs("opposites") for side in "ab"}
            np.save(path, load_embedder().embed(sorted(texts | opposites)))
        self._real = np.load(path)
        self._generator = np.random.default_rng(seed)

    def rows(self, count: int) -> np.ndarray:
        """Return `[count, DIM]` unit vectors near the real ones."""
        return self.moved(self._draw(count), 0.1, 0.7)

    def moved(self, vectors: np.ndarray, least: float = 0.1, most: float = 0.3) -> np.ndarray:
        """Return vectors like those of rewordings, at cosines around 0.96 by default."""
        count = len(vectors)
        distance = self._generator.uniform(least, most, (count, 1)).astype(np.float32)
        found: np.ndarray = vectors + distance * (self._draw(count) - self._draw(count))
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        return found

    def _draw(self, count: int) -> np.ndarray:
        drawn: np.ndarray = self._real[self._generator.integers(len(self._real), size=count)]
        return drawn


def prepare_store(folder: Path, entries: int) -> Store:
    """Open a store of one namespace, and create what the folder lacks."""
    vectors, store = QuestionVectors(folder, entries), open_store(folder / f"{entries}.db")
    stored = store.count()
    for start in range(0, entries, _BATCH):
        batch = vectors.rows(min(_BATCH, entries - start))
        if start >= stored:
            numbers = range(start, start + len(batch))
            made = [make_entry(f"question {number}", request=b"{}" * 100, response=_RESPONSE) for number in numbers]
            store.put_many([NewEntry(entry, vector, EMBEDDER) for entry, vector in zip(made, batch, strict=True)])
    return store
