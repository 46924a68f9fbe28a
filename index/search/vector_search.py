"""Vector search in a namespace: a scan of the store's vectors, or a FAISS index if the namespace is large."""

import logging
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.search.vector_index import FLAT_LIMIT, VectorIndex
from kvproxy.index.store import NewEntry, RemovedEntry, Store, StoredQuestion, WriteResult
from kvproxy.index.store.database import Row
from kvproxy.index.store.rows import QUESTION, read_questions

MIN_INDEXED = 256  # A scan of fewer vectors is faster than embedding a question.
_BATCH = 2_000
_log = logging.getLogger("kvproxy")


class VectorSearch:
    """Finds the nearest stored questions of a namespace. Thread-safe; methods may raise a CacheStoreError."""

    def load(self) -> None: ...

    def stored_dim(self) -> int | None:
        """Return the dimension of a stored vector of the embedder; None without one."""
        raise NotImplementedError

    def has_vectors(self, namespace: str) -> bool:
        raise NotImplementedError

    def search(
        self, namespace: str, vector: np.ndarray, limit: int, floor: float = -1.0
    ) -> list[tuple[StoredQuestion, float]]:
        """Return the nearest `limit` questions with their vectors, and their cosines, nearest first.

        Only one is returned if the highest cosine is below `floor`.
        """
        raise NotImplementedError

    def index_entries(self, entries: Sequence[NewEntry], result: WriteResult) -> None:
        """Add the vectors of written entries to the index; `result` has their numbers. Call it in the order of the writes."""

    def remove(self, removed: Iterable[RemovedEntry]) -> None: ...

    def maintain(self) -> None: ...

    def close(self) -> None: ...


class FaissSearch(VectorSearch):
    """Vector search with a FAISS index for each large namespace. The store is the source of truth."""

    def __init__(
        self,
        store: Store,
        embedder: str,
        dim: int,
        *,
        min_indexed: int = MIN_INDEXED,
        flat_limit: int = FLAT_LIMIT,
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._dim = dim
        self._min_indexed = min_indexed
        self._flat_limit = flat_limit
        self.indexes: dict[str, VectorIndex] = {}
        self._background = ThreadPoolExecutor(1, thread_name_prefix="kvproxy-index")
        self._changing = threading.RLock()
        self._scheduled: set[str] = set()
        self._closing = threading.Event()

    def stored_dim(self) -> int | None:
        rows = self._query("select length(vector) as size from vectors where embedder = :embedder limit 1")
        return int(rows[0]["size"]) // np.dtype(np.float32).itemsize if rows else None

    def load(self) -> None:
        sql = "select namespace from vectors where embedder = :embedder group by namespace having count(*) >= :least"
        for row in self._query(sql, least=self._min_indexed):
            self._open_index(row["namespace"])

    def _open_index(self, namespace: str) -> None:
        index, after = VectorIndex(self._dim, self._flat_limit), 0
        while len((part := self.stored_vectors(namespace, after, _BATCH))[0]):
            index.add(*part)
            after = int(part[0][-1])
        self.indexes[namespace] = index
        self._schedule(namespace)

    def _query(self, sql: str, **values: Any) -> list[Row]:
        return self._store.database.query(sql, values | {"embedder": self._embedder})

    def stored_vectors(self, namespace: str, after_number: int = 0, limit: int = -1) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers and the vectors of a namespace, in ascending order: `[n]` int64, and `[n, dim]` float32.

        Args:
            after_number: only vectors with higher numbers are returned.
            limit: maximum number of vectors; -1 is unlimited.
        """
        sql = (
            "select number, vector from vectors where embedder = :embedder and namespace = :namespace"
            " and number > :after order by number limit :limit"
        )
        rows = self._query(sql, namespace=namespace, after=after_number, limit=limit)
        numbers = np.fromiter((row["number"] for row in rows), np.int64, len(rows))
        return numbers, np.frombuffer(b"".join(row["vector"] for row in rows), np.float32).reshape(-1, self._dim)

    def _has_at_least(self, namespace: str, count: int) -> bool:
        # A row for each vector would take longer than the rest of a write.
        sql = (
            "select count(*) as found from"
            " (select 1 from vectors where embedder = :embedder and namespace = :namespace limit :count)"
        )
        return int(self._query(sql, namespace=namespace, count=count)[0]["found"]) == count

    def has_vectors(self, namespace: str) -> bool:
        return namespace in self.indexes or self._has_at_least(namespace, 1)

    def search(
        self, namespace: str, vector: np.ndarray, limit: int, floor: float = -1.0
    ) -> list[tuple[StoredQuestion, float]]:
        index = self.indexes.get(namespace)
        if index is not None:
            numbers, vectors = index.search(vector, limit)
        else:
            stored, vectors = self.stored_vectors(namespace)
            nearest = np.argsort(-(vectors @ vector))[:limit]
            numbers, vectors = stored[nearest].tolist(), vectors[nearest]
        # FAISS rounds differently than NumPy, on which decisions must not depend.
        cosines = dict(zip(numbers, np.vecdot(vectors, vector).tolist(), strict=True))
        places = {number: place for place, number in enumerate(numbers)}
        best = max(cosines, key=cosines.__getitem__, default=None)
        if best is not None and cosines[best] < floor:
            # Most new questions have no similar question, and reading an entry takes a third of the time of an embedding.
            cosines = {best: cosines[best]}
        chosen, values = self._store.database.in_list("v.number", list(cosines))
        sql = (
            f"select v.number, {QUESTION} from vectors v join responses r on r.id = v.id where {chosen}"
            " and v.namespace = :namespace and v.embedder = :embedder order by v.number"
        )
        rows = self._query(sql, namespace=namespace, **values, **self._store.time_parameters())
        near = [
            (replace(question, vector=vectors[places[row["number"]]]), cosines[row["number"]])
            for row, question in read_questions(rows, self._store.codec)
        ]
        return sorted(near, key=lambda hit: -hit[1])

    def index_entries(self, entries: Sequence[NewEntry], result: WriteResult) -> None:
        added: dict[str, list[tuple[int, np.ndarray]]] = {}
        for put, number in zip(entries, result.numbers, strict=True):
            if number is not None and put.vector is not None:
                added.setdefault(put.entry.namespace, []).append((number, put.vector))
        with self._changing:
            for namespace, members in added.items():
                index = self.indexes.get(namespace)
                if index is not None:
                    index.add(np.array([number for number, _ in members]), np.stack([vector for _, vector in members]))
                    self._schedule(namespace)
                elif self._has_at_least(namespace, self._min_indexed):
                    self._open_index(namespace)
            self.remove(result.removed)

    def remove(self, removed: Iterable[RemovedEntry]) -> None:
        with self._changing:
            touched = set()
            for entry in removed:
                index = self.indexes.get(entry.namespace)
                if index is not None:
                    index.remove(entry.numbers)
                    touched.add(entry.namespace)
            for namespace in touched:
                if len(self.indexes[namespace]) < self._min_indexed // 2:
                    del self.indexes[namespace]
                else:
                    self._schedule(namespace)

    def _schedule(self, namespace: str) -> None:
        index = self.indexes.get(namespace)
        if index is None or namespace in self._scheduled or self._closing.is_set() or not index.needs_rebuild():
            return
        self._scheduled.add(namespace)
        self._background.submit(self._maintain_index, namespace)

    def _maintain_index(self, namespace: str) -> None:
        import faiss

        faiss.omp_set_num_threads(max(1, (os.cpu_count() or 1) // 2))  # Applies to this thread only.
        try:
            while (index := self.indexes.get(namespace)) is not None and index.needs_rebuild():
                if not index.rebuild(lambda after: self.stored_vectors(namespace, after, _BATCH), self._closing.is_set):
                    return
        except CacheStoreError:
            pass
        except Exception:
            _log.exception("the index of namespace %s was not brought up to date", namespace[:12])
        finally:
            self._scheduled.discard(namespace)

    def maintain(self) -> None:
        for namespace in list(self.indexes):
            self._schedule(namespace)

    def wait_for_rebuilds(self) -> None:
        self._background.submit(lambda: None).result()

    def close(self) -> None:
        self._closing.set()
        self._background.shutdown()
