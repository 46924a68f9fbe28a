"""The vectors in an SQLite file, and what is near by their numbers."""

import abc
import contextlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvproxy.index.store.entry_heads import HEAD, HEAD_NAMES, read_heads
from kvproxy.index.store.health import Kind
from kvproxy.index.store.protocol import StoredQuestion
from kvproxy.index.store.sealing import Row
from kvproxy.index.store.sql import SqlStore
from kvproxy.index.store.sqlite.many import as_one_row


class SqliteVectors(SqlStore):
    """A store in a file, as far as its vectors are read."""

    @abc.abstractmethod
    def _reading(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        """A connection that nobody else uses meanwhile."""

    @abc.abstractmethod
    def _told(self, kind: Kind) -> contextlib.AbstractContextManager[None]:
        """SQLite's errors as the store's own."""

    def namespaces(self, embedder: str, least: int) -> list[str]:
        """Namespaces with at least so many vectors of an embedder."""
        sql = "select namespace from vectors where embedder = :embedder group by namespace having count(*) >= :least"
        return [row["namespace"] for row in self._query(sql, {"embedder": embedder, "least": least})]

    def vector_count(self, namespace: str, embedder: str, most: int) -> int:
        """How many vectors a namespace has; counted up to `most`."""
        sql = (
            "select count(*) as there from (select 1 from vectors where embedder = :embedder and namespace = :namespace"
            " limit :most)"
        )
        values = {"embedder": embedder, "namespace": namespace, "most": most}
        return int(self._query(sql, values)[0]["there"])

    def vectors(
        self, namespace: str, embedder: str, *, after: int = 0, limit: int = -1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of a namespace by rising number: `[n]` int64 numbers beyond `after`, and `[n, dim]` float32."""
        sql = (
            "select number, vector from vectors where embedder = :embedder and namespace = :namespace"
            " and number > :after order by number limit :limit"
        )
        values = {"embedder": embedder, "namespace": namespace, "after": after, "limit": limit}
        with self._told("read"), self._reading() as reader:
            rows = reader.execute(sql, values).fetchall()
        if not rows:
            return np.empty(0, np.int64), np.empty((0, 0), np.float32)
        numbers = np.fromiter((number for number, _ in rows), np.int64, len(rows))
        return numbers, np.frombuffer(b"".join(vector for _, vector in rows), np.float32).reshape(len(rows), -1)

    def vector_ids(self, namespace: str, embedder: str) -> tuple[np.ndarray, np.ndarray]:
        """`[n]` int64 numbers of a namespace's vectors, rising, and `[n]` bytes: the ids of their entries."""
        sql = "select number, id from vectors where embedder = :embedder and namespace = :namespace order by number"
        with self._told("read"), self._reading() as reader:
            rows = reader.execute(sql, {"embedder": embedder, "namespace": namespace}).fetchall()
        numbers = np.fromiter((number for number, _ in rows), np.int64, len(rows))
        return numbers, np.array([str(id).encode() for _, id in rows], dtype=np.bytes_)

    def near(
        self, namespace: str, embedder: str, numbers: Sequence[int], *, vectors: bool
    ) -> dict[int, tuple[StoredQuestion, np.ndarray | None]]:
        """The heads of the entries with those vectors that are still there, and of that namespace, by rising number.

        Args:
            vectors: read the vectors too, which takes longer.
        """
        # Without the vectors an index answers for its whole part of it.
        sql = (
            f"select v.number, {'v.vector, ' if vectors else ''}{HEAD} from vectors v join responses r on r.id = v.id"
            " where v.number in (select value from json_each(:numbers)) and v.namespace = :namespace"
            " and v.embedder = :embedder order by v.number"
        )
        values = {"numbers": json.dumps(list(numbers)), "namespace": namespace, "embedder": embedder} | self.now()
        rows = self._query(sql, values) if vectors else self._together(sql, ("number", *HEAD_NAMES), values)
        return {
            row["number"]: (head, np.frombuffer(row["vector"], np.float32) if vectors else None)
            for row, head in read_heads(rows, self._texts)
        }

    def _together(self, sql: str, names: Sequence[str], values: Mapping[str, Any]) -> list[Row]:
        """Rows with columns of those names, read at once."""
        found = json.loads(self._query(as_one_row(sql, names), values)[0]["rows"])
        return [dict(zip(names, row, strict=True)) for row in found]
