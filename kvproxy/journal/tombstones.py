"""Cached rows of the table `tombstones`: removed entries."""

import sqlite3
from collections.abc import Iterable

_MAX_ROWS = 100_000

Tombstone = tuple[str | None, float]
"""Reason and time of the removal of an entry."""


class Tombstones:
    """The table `tombstones`. Every method may raise sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._rows: dict[bytes, Tombstone | None] = {}
        self._changed: set[bytes] = set()

    def begin(self, keys: Iterable[bytes]) -> None:
        """Begin a transaction, and read the rows of its keys. More rows are read on demand."""
        self.end()
        self._read(list(keys))

    def end(self) -> None:
        """Clear the cache."""
        self._rows.clear()
        self._changed.clear()

    def _read(self, keys: list[bytes]) -> None:
        for key in keys:
            sql = "select reason, time from tombstones where key = ?"
            self._rows[key] = self._connection.execute(sql, [key]).fetchone()

    def get(self, key: bytes) -> Tombstone | None:
        """The tombstone of a key."""
        if key not in self._rows:
            self._read([key])
        return self._rows[key]

    def set(self, key: bytes, stone: Tombstone | None) -> None:
        """Replace the tombstone of a key; None deletes it."""
        if stone is None and self.get(key) is None:
            return
        self._rows[key] = stone
        self._changed.add(key)

    def write(self) -> None:
        """Write the changes."""
        gone = [(key,) for key in self._changed if self._rows[key] is None]
        self._connection.executemany("delete from tombstones where key = ?", gone)
        rows = [(key, *stone) for key in self._changed if (stone := self._rows[key]) is not None]
        self._connection.executemany("insert or replace into tombstones (key, reason, time) values (?, ?, ?)", rows)
        self.end()

    def prune(self) -> None:
        """Delete the oldest rows."""
        self._connection.execute(
            "delete from tombstones where time < (select time from tombstones order by time desc limit 1 offset ?)",
            [_MAX_ROWS],
        )
