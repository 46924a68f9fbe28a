"""What is no longer stored, and why: those keys that one transaction has to do with are held in memory."""

import sqlite3
from collections.abc import Iterable

from kvproxy.index.many import insert_many, run_many

_MOST = 100_000

Tombstone = tuple[str | None, float]
"""Why an entry is no longer stored, and since when."""


class Tombstones:
    """Rows of the table of tombstones. Every method may raise sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._rows: dict[bytes, Tombstone | None] = {}
        self._changed: set[bytes] = set()

    def begin(self, keys: Iterable[bytes]) -> None:
        """Begin a transaction that has to do with some keys; others are read when they are asked for."""
        self.end()
        self._read(list(keys))

    def end(self) -> None:
        """Forget what was read."""
        self._rows.clear()
        self._changed.clear()

    def _read(self, keys: list[bytes]) -> None:
        self._rows.update(dict.fromkeys(keys))
        sql = "select key, why, time from tombstones where key in (?)"
        self._rows.update({key: (why, time) for key, why, time in run_many(self._connection, sql, keys)})

    def get(self, key: bytes) -> Tombstone | None:
        """That of a key."""
        if key not in self._rows:
            self._read([key])
        return self._rows[key]

    def set(self, key: bytes, stone: Tombstone | None) -> None:
        """Put one in the place of what is there; None takes it away."""
        if stone is None and self.get(key) is None:
            return
        self._rows[key] = stone
        self._changed.add(key)

    def write(self) -> None:
        """Write what has changed."""
        gone = [key for key in self._changed if self._rows[key] is None]
        run_many(self._connection, "delete from tombstones where key in (?)", gone)
        rows = [(key, *stone) for key in self._changed if (stone := self._rows[key]) is not None]
        insert_many(self._connection, "insert or replace into tombstones (key, why, time)", rows)
        self.end()

    def forget(self) -> None:
        """Let the oldest go."""
        self._connection.execute(
            "delete from tombstones where time < (select time from tombstones order by time desc limit 1 offset ?)",
            [_MOST],
        )
