"""Stored responses and their vectors in PostgreSQL with pgvector, shared by any number of proxies."""

import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import psycopg

from kvproxy.index.errors import StoreDamaged
from kvproxy.index.store.entry_heads import HEAD, read_heads
from kvproxy.index.store.postgres.server import PostgresServer
from kvproxy.index.store.protocol import Capacity, StoredQuestion
from kvproxy.index.store.sealing import Cipher, Row, RowCodec
from kvproxy.index.store.sql import SqlStore
from kvproxy.index.store.transaction import Transaction

_UNBOUNDED = Capacity()


class PostgresStore(SqlStore):
    """Responses on a server. Safe to use from several threads, and by several processes.

    Args:
        url: see `PostgresServer`.
        clock: seconds since the epoch.
        capacity: how large it may grow; every proxy should be given the same.
        cipher: encrypts the texts; every proxy should be given the same keys.

    Raises:
        CacheStoreError: the server cannot be reached, or lacks pgvector; the message names the fix.
    """

    remote = True
    _members = "id = any(:ids)"
    _same_keys = "key = any(:keys)"

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] = time.time,
        capacity: Capacity = _UNBOUNDED,
        cipher: Cipher | None = None,
    ) -> None:
        self.server = PostgresServer(url)
        super().__init__(self.server.name, clock, capacity, RowCodec(cipher))
        try:
            self._check_keys()
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _writing(self, *, lasting: bool = True) -> Iterator[Transaction]:
        with self.health.watch("write"), self.server.connection() as connection, connection.transaction():
            if not lasting:
                connection.execute("set local synchronous_commit = off")
            # Writers of all proxies queue here, so that none sees half of another's work, and none deadlocks.
            connection.execute("select 1 from totals for update")
            yield _PostgresRun(connection)

    def _query(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        with self.health.watch("read"), self.server.connection() as connection:
            return _rows(connection.execute(_placeholders(sql), values))

    def near(self, nearest: str, values: Mapping[str, Any]) -> list[tuple[StoredQuestion, float]]:
        """The heads of entries with their scores, the highest first.

        Args:
            nearest: a statement that gives `id` and `score`.
            values: for it.
        """
        sql = f"select n.score, {HEAD} from ({nearest}) as n join responses r on r.id = n.id order by n.score desc"
        rows = self._query(sql, {**values, **self.now()})
        return [(head, float(row["score"])) for row, head in read_heads(rows, self._texts)]

    def _list(self, ids: Sequence[str]) -> list[str]:
        return list(ids)

    def _text(self, text: str) -> str:
        # PostgreSQL's text cannot hold this character, which SQLite's can.
        return text.replace("\x00", "")

    def _vector(self, vector: np.ndarray) -> str:
        return as_vector(vector)

    def _disk_bytes(self) -> int:
        sql = "select pg_total_relation_size('responses') + pg_total_relation_size('vectors') as bytes"
        return int(self._query(sql, {})[0]["bytes"])

    def check(self) -> int:
        """Have every row of the responses read; how many there are.

        Raises:
            StoreDamaged: there are others than were counted.
        """
        sql = (
            "select (select count(*) from responses where length(request) + length(response) >= 0) as held,"
            " (select entries from totals) as counted"
        )
        row = self._query(sql, {})[0]
        if row["held"] != row["counted"]:
            raise StoreDamaged(
                f"the store {self.name} counts {row['counted']} responses but holds {row['held']}: restore a backup"
            )
        return int(row["held"])

    def close(self) -> None:
        super().close()
        self.server.close()


class _PostgresRun:
    def __init__(self, connection: psycopg.Connection[Row]) -> None:
        self._connection = connection

    def __call__(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        return _rows(self._connection.execute(_placeholders(sql), values))

    def many(self, sql: str, values: Sequence[Mapping[str, Any]]) -> None:
        with self._connection.cursor() as cursor:
            # Sent one behind the other, without waiting for each answer.
            cursor.executemany(_placeholders(sql), values)


def as_vector(vector: np.ndarray) -> str:
    """A vector as pgvector reads it."""
    return f"[{','.join(map(repr, vector.astype(np.float32).tolist()))}]"


@functools.lru_cache(maxsize=256)
def _placeholders(sql: str) -> bytes:
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", sql).encode()


def _rows(cursor: psycopg.Cursor[Row]) -> list[Row]:
    return cursor.fetchall() if cursor.description is not None else []
