"""Nearest vectors inside one namespace, with FAISS: an exact flat index while small, HNSW when large."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

FLAT_LIMIT = 20_000
_LINKS = 32
EF_SEARCH = 64  # Graph nodes kept while searching; FAISS's own 16 misses near neighbours of clustered questions.
_REBUILD_SHARE = 0.3  # Deleted vectors stay in the index as tombstones until they are this share of it.


class VectorIndex:
    """Ids by vector. Cosine similarity, since all vectors have unit length.

    Args:
        dim: width of the vectors.
        flat_limit: vectors from which on the index is approximate.
    """

    def __init__(self, dim: int, flat_limit: int = FLAT_LIMIT) -> None:
        self.dim = dim
        self._flat_limit = flat_limit
        self._ids: list[str] = []
        self._places: dict[str, int] = {}
        self._dead: set[int] = set()
        self._index = self._make(large=False)
        self._large = False

    def __len__(self) -> int:
        return len(self._places)

    def _make(self, *, large: bool) -> Any:
        import faiss

        if large:
            index = faiss.IndexHNSWFlat(self.dim, _LINKS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efSearch = EF_SEARCH
            return index
        return faiss.IndexFlatIP(self.dim)

    def add(self, ids: Sequence[str], vectors: np.ndarray) -> None:
        """Add vectors, `[len(ids), dim]`; one with a known id replaces it."""
        self.remove(id for id in ids if id in self._places)
        self._places |= {id: len(self._ids) + offset for offset, id in enumerate(ids)}
        self._ids += ids
        self._index.add(np.ascontiguousarray(vectors, dtype=np.float32))
        if not self._large and len(self._ids) > self._flat_limit:
            self._rebuild()

    def remove(self, ids: Iterable[str]) -> None:
        """Forget vectors; unknown ids are passed over."""
        for id in list(ids):
            place = self._places.pop(id, None)
            if place is not None:
                self._dead.add(place)
        if len(self._dead) > 100 and len(self._dead) > _REBUILD_SHARE * len(self._ids):
            self._rebuild()

    def search(self, vector: np.ndarray, limit: int) -> list[tuple[str, float]]:
        """The nearest (id, cosine), nearest first, `limit` at most."""
        if not self._places:
            return []
        query = np.ascontiguousarray(vector[None], dtype=np.float32)
        # Asking for as many more as there are tombstones would cost a search of them all; few are near any one query.
        wanted = min(2 * limit if self._dead else limit, len(self._ids))
        while True:
            scores, places = self._index.search(query, wanted)
            found = [
                (self._ids[place], float(score))
                for place, score in zip(places[0].tolist(), scores[0].tolist(), strict=True)
                if place >= 0 and place not in self._dead
            ]
            if len(found) >= limit or wanted == len(self._ids):
                return found[:limit]
            wanted = min(4 * wanted, len(self._ids))

    def _rebuild(self) -> None:
        live = sorted(self._places.values())
        vectors = self._index.reconstruct_n(0, len(self._ids))[live] if live else np.empty((0, self.dim), np.float32)
        self._ids = [self._ids[place] for place in live]
        self._places = {id: place for place, id in enumerate(self._ids)}
        self._dead = set()
        self._large = len(live) > self._flat_limit
        self._index = self._make(large=self._large)
        if live:
            self._index.add(vectors)
