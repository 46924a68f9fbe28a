"""Observations in SQLite: the file of the responses, over a connection of their own."""

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store.observations import COLUMNS, COUNTS, M003, Observation, pruning, values
from kvproxy.index.store.sqlite.connection import apply_steps, connect, make_private

if TYPE_CHECKING:
    from sqlite_utils import Database


def m001_observations(db: "Database") -> None:
    columns = {"number": int, "entry": str, "score": float, "right": int, "scorer": str, "source": str}
    table = db["observations"]
    table.create(columns | {"accepted": int, "created": float}, pk="number")
    table.create_index(["entry", "number"])
    db.execute("create index users_verdicts on observations (entry, number) where source = 'user'")
    table.create_index(["scorer", "number"])


def m002_learned(db: "Database") -> None:
    for sql in _M002:
        db.execute(sql)


# One pair's score says nothing about classes of answers.
_M002 = (
    "drop index idx_observations_scorer_number",
    "alter table observations drop column score",
    "alter table observations drop column scorer",
    "alter table observations add column namespace text not null default ''",
    "alter table observations add column details text",
    "create index idx_observations_namespace on observations (namespace, number)",
    "create table learned (namespace text primary key, number integer not null, state text not null)",
)


def m003_pruned(db: "Database") -> None:
    for sql in M003:
        db.execute(sql)


class SqliteObservations:
    """Observations in the file of the responses, over a connection of their own. Safe to use from several threads.

    Raises:
        CacheStoreError: the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with self._told():
            make_private(path)
            self._connection = connect(path)
            # A commit survives a killed process without a wait for the disk; a power cut may cost the last observations.
            self._connection.execute("pragma synchronous=normal")
            apply_steps(self._connection, "kvproxy.observations", [m001_observations, m002_learned, m003_pruned])

    def add(self, observations: Sequence[Observation]) -> None:
        sql = (
            "insert into observations (entry, right, source, accepted, created, namespace, details)"
            " values (?, ?, ?, ?, ?, ?, ?)"
        )
        with self._lock, self._told(), self._connection:
            self._connection.executemany(sql, map(values, observations))

    def since(self, namespace: str, number: int, limit: int) -> list[Observation]:
        sql = f"select {COLUMNS} from observations where namespace = ? and number > ? order by number limit ?"
        return [Observation.from_row(row) for row in self._query(sql, [namespace, number, limit])]

    def rejected(self, ids: Sequence[str]) -> set[str]:
        sql = (
            "select entry from observations where not right and number in (select max(number) from observations"
            " where source = 'user' and entry in (select value from json_each(?)) group by entry)"
        )
        return {entry for (entry,) in self._query(sql, [json.dumps(list(ids))])}

    def snapshot(self, namespace: str) -> str | None:
        rows = self._query("select state from learned where namespace = ?", [namespace])
        return str(rows[0][0]) if rows else None

    def save(self, namespace: str, number: int, state: str) -> None:
        sql = (
            "insert into learned (namespace, number, state) values (?, ?, ?) on conflict (namespace) do update"
            " set number = excluded.number, state = excluded.state where excluded.number >= learned.number"
        )
        with self._lock, self._told(), self._connection:
            self._connection.execute(sql, [namespace, number, state])

    def summary(self) -> dict[str, int]:
        counts = self._query(
            "select kept.observed + pruned.observed, kept.agreed + pruned.agreed, kept.accepted + pruned.accepted,"
            f" kept.accepted_wrong + pruned.accepted_wrong from (select {COUNTS} from observations) as kept,"
            " pruned_totals as pruned",
            [],
        )[0]
        rejected = self._query(
            "select count(*) from observations where not right and number in"
            " (select max(number) from observations where source = 'user' group by entry)",
            [],
        )[0]
        names = ("observed", "right", "accepted", "accepted_wrong", "rejected")
        return dict(zip(names, (*counts, *rejected), strict=True))

    def prune(self, keep: int) -> int:
        with self._lock, self._told(), self._connection:
            return int([self._connection.execute(sql) for sql in pruning(keep)][-1].rowcount)

    def pruned(self, namespace: str) -> int:
        rows = self._query("select pruned from learned where namespace = ?", [namespace])
        return int(rows[0][0]) if rows else 0

    def close(self) -> None:
        self._connection.close()

    def _query(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._lock, self._told():
            return list(self._connection.execute(sql, values))

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """SQLite's errors as the store's own."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise CacheStoreError(
                f"the store {self._path} failed ({error}): check the disk, and kvproxy doctor"
            ) from error
