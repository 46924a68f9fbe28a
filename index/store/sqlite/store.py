"""The response store in an SQLite file; it also reads vectors for FAISS indexes."""

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store.rows import QUESTION, EntryCipher, read_questions
from kvproxy.index.store.sqlite.database import SqliteDatabase
from kvproxy.index.store.store import Store
from kvproxy.index.store.store_types import Capacity, StoredQuestion


class SqliteStore(Store):
    database: SqliteDatabase

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        capacity: Capacity = Capacity(),
        cipher: EntryCipher | None = None,
    ) -> None:
        self.path = path
        super().__init__(SqliteDatabase(path), clock=clock, capacity=capacity, cipher=cipher)

    def failure(self) -> str | None:
        with contextlib.suppress(CacheStoreError), self.database.converting_errors("read", check_now=True):
            self.count()
        return super().failure()

    def reencrypt(self) -> int:
        resealed = super().reencrypt()
        if resealed:
            self.database.vacuum()
        return resealed

    def namespaces(self, embedder: str, min_vectors: int) -> list[str]:
        sql = "select namespace from vectors where embedder = :embedder group by namespace having count(*) >= :least"
        return [row["namespace"] for row in self.database.query(sql, {"embedder": embedder, "least": min_vectors})]

    def vector_count(self, namespace: str, embedder: str, limit: int) -> int:
        sql = "select 1 from vectors where embedder = :embedder and namespace = :namespace limit :most"
        return len(self.database.query(sql, {"embedder": embedder, "namespace": namespace, "most": limit}))

    def vectors(
        self, namespace: str, embedder: str, *, after_number: int = 0, limit: int = -1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers and the vectors of a namespace, in ascending order: `[n]` int64, and `[n, dim]` float32.

        Args:
            after_number: only vectors with higher numbers are returned.
            limit: maximum number of vectors; -1 is unlimited.
        """
        sql = (
            "select number, vector from vectors where embedder = :embedder and namespace = :namespace"
            " and number > :after order by number limit :limit"
        )
        values = {"embedder": embedder, "namespace": namespace, "after": after_number, "limit": limit}
        rows = self.database.query(sql, values)
        if not rows:
            return np.empty(0, np.int64), np.empty((0, 0), np.float32)
        numbers = np.fromiter((row["number"] for row in rows), np.int64, len(rows))
        return numbers, np.frombuffer(b"".join(row["vector"] for row in rows), np.float32).reshape(len(rows), -1)

    def questions_by_number(self, namespace: str, embedder: str, numbers: Sequence[int]) -> dict[int, StoredQuestion]:
        sql = (
            f"select v.number, {QUESTION} from vectors v join responses r on r.id = v.id"
            " where v.number in (select value from json_each(:numbers)) and v.namespace = :namespace"
            " and v.embedder = :embedder order by v.number"
        )
        values = {"numbers": json.dumps(list(numbers)), "namespace": namespace, "embedder": embedder}
        rows = self.database.query(sql, values | self.time_parameters())
        return {row["number"]: question for row, question in read_questions(rows, self.codec)}
