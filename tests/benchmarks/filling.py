"""Stores for benchmarks: entries with random vectors of length one, in several namespaces."""

from collections.abc import Iterator

import numpy as np

from kvproxy.index.entry import Entry
from kvproxy.index.models.embedder import Embedder
from kvproxy.index.store import NewEntry, Store
from tests.index.entries import make_entry

_BATCH = 5_000


def fill(store: Store, model: Embedder, entries: int, namespaces: int) -> Iterator[tuple[list[Entry], np.ndarray]]:
    """Put entries into a store, some thousand at a time; each batch, with its vectors, once it is stored."""
    generator = np.random.default_rng(0)
    for start in range(0, entries, _BATCH):
        count = min(_BATCH, entries - start)
        vectors = generator.normal(size=(count, model.dim)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        made = [make_entry(f"question {start + at}", namespace=f"n{(start + at) % namespaces}") for at in range(count)]
        store.put_many([NewEntry(entry, vector, model.name) for entry, vector in zip(made, vectors, strict=True)])
        yield made, vectors
