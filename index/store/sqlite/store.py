"""Stored responses in an SQLite file; vectors are kept beside them and indexed elsewhere.

One connection writes, behind a lock. Each reader has one to itself, so that a lookup waits neither for a commit nor for a long
listing.
"""

import contextlib
import json
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError, StoreDamaged
from kvproxy.index.store.health import Kind
from kvproxy.index.store.known_keys import KnownKeys
from kvproxy.index.store.protocol import Capacity
from kvproxy.index.store.sealing import Cipher, Row, RowCodec
from kvproxy.index.store.sqlite.connection import apply_steps, connect, make_private
from kvproxy.index.store.sqlite.database_files import DatabaseFiles
from kvproxy.index.store.sqlite.many_rows import execute_many
from kvproxy.index.store.sqlite.schema import NAME, STEPS
from kvproxy.index.store.sqlite.vectors import SqliteVectors
from kvproxy.index.store.transaction import Transaction

_UNBOUNDED = Capacity()
_LOOK_SECONDS = 0.02  # Reads look that seldom whether their file is still the one at its path.


class SqliteStore(SqliteVectors):
    """Responses in a file. Safe to use from several threads.

    Args:
        path: the file.
        clock: seconds since the epoch.
        capacity: how large it may grow.
        cipher: encrypts the texts; None stores them in clear.

    Raises:
        StoreDamaged: the file is no SQLite database, or a damaged one; it is left as it is.
        CacheStoreError: the file cannot be opened, or holds what the cipher cannot read.
    """

    _members = "id in (select value from json_each(:ids))"
    _same_keys = "key in (select value from json_each(:keys))"

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        capacity: Capacity = _UNBOUNDED,
        cipher: Cipher | None = None,
    ) -> None:
        super().__init__(str(path), clock, capacity, RowCodec(cipher))
        self.path = path
        self._write_lock = threading.RLock()
        self._readers: deque[sqlite3.Connection] = deque()
        self._watcher: sqlite3.Connection | None = None
        self._looked = 0.0
        self._lasting = True  # As `connect` makes it.
        self._closed = False
        self._keys = KnownKeys(self._query, self._write_lock)
        try:
            make_private(path)
            writer = self._connect()
            # Opens a missing file's schema, and reads enough of an old one to notice that it is damaged.
            apply_steps(writer, NAME, STEPS)
            self._writer = writer
            with self._reading() as reader:
                reader.execute("select count(*) from totals").fetchone()
            self._files = DatabaseFiles(path, writer)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            # Python cannot decode SQLite's message about a damaged schema.
            if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
                raise CacheStoreError(
                    f"cannot open the store {path} ({error}): name one that can be written to, on a disk with room"
                ) from None
            raise StoreDamaged(
                f"the store {path} is damaged ({error}): move it away to start with an empty one, or restore a backup"
            ) from None
        except OSError as error:
            raise CacheStoreError(
                f"cannot open the store {path} ({error.strerror}): name one that can be written to, on a disk with room"
            ) from None
        try:
            self._check_keys()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        return connect(self.path)

    @contextlib.contextmanager
    def _writing(self, *, lasting: bool = True) -> Iterator[Transaction]:
        with self._write_lock, self._told("write"), self._keys.writing(), self._writer:
            # Without a wait for the disk the commit survives a killed process, but perhaps not a power cut.
            if lasting != self._lasting:
                self._writer.execute(f"pragma synchronous={'full' if lasting else 'normal'}")
                self._lasting = lasting
            self._writer.execute("begin immediate")
            yield _SqliteRun(self._writer)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses meanwhile."""
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = self._connect()
        try:
            yield reader
        finally:
            self._readers.append(reader)

    def _query(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        with self._told("read"), self._reading() as reader:
            return _rows(reader.execute(sql, values))

    def find(self, key: str) -> Entry | None:
        return None if not self._closed and self._keys.lacks(key) else super().find(key)

    def _stores(self, keys: Sequence[str]) -> None:
        self._keys.add(keys)

    def version(self) -> int | None:
        with self._told("read"):
            if self._watcher is None:
                self._watcher = self._connect()
            row = self._watcher.execute("pragma data_version").fetchone()
        return int(row[0])

    def _list(self, ids: Sequence[str]) -> str:
        return json.dumps(list(ids))

    def _vector(self, vector: np.ndarray) -> bytes:
        return vector.astype(np.float32).tobytes()

    def _disk_bytes(self) -> int:
        return sum(part.stat().st_size for part in self.path.parent.glob(self.path.name + "*") if part.is_file())

    @property
    def identity(self) -> str:
        """Random, given to the file when it was made; what is derived from it carries this."""
        return str(self._query("select identity from totals", {})[0]["identity"])

    def reseal(self) -> int:
        """As `Store.reseal`; no old text is left in the file."""
        resealed = super().reseal()
        if resealed:
            with self._write_lock, self._told("write"):
                self._writer.execute("vacuum")
                self._writer.execute("pragma wal_checkpoint(truncate)")
        return resealed

    def check(self) -> int:
        """Have SQLite read the whole file; how many responses it holds.

        Raises:
            StoreDamaged: it found damage.
        """
        verdict = self._query("pragma integrity_check", {})[0]["integrity_check"]
        if verdict != "ok":
            raise StoreDamaged(f"the store {self.path} is damaged ({verdict}): restore a backup, or move it away")
        return int(self._query("select count(*) as entries from responses", {})[0]["entries"])

    def close(self) -> None:
        """Write what is pending and close the file."""
        self._keys.close()
        super().close()
        self._closed = True
        self._writer.close()
        if self._watcher is not None:
            self._watcher.close()
        while self._readers:
            self._readers.pop().close()

    def _due(self, kind: Kind) -> bool:
        """Whether it is time to look for the files again; what writes looks each time."""
        now = time.monotonic()
        if kind == "read" and now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        return True

    def failure(self) -> str | None:
        # Also where nobody has read since the file was taken away.
        self._looked = 0.0
        with contextlib.suppress(CacheStoreError):
            self.count()
        return super().failure()

    @contextlib.contextmanager
    def _told(self, kind: Kind) -> Iterator[None]:
        """SQLite's errors as the store's own; and an error where its files are no longer those that are open."""
        if self._closed:
            raise CacheStoreError(f"the store {self.path} is closed")
        with self.health.watch(kind):
            if self._due(kind) and self._files.gone:
                self._looked = 0.0
                with self._write_lock:
                    self._files.leave()
                raise CacheStoreError(
                    f"the store {self.path} was deleted or replaced: restart to use what is there now"
                )
            try:
                yield
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise CacheStoreError(
                    f"the store {self.path} failed ({error}): check the disk, and kvproxy doctor"
                ) from error


class _SqliteRun:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __call__(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        return _rows(self._connection.execute(sql, values))

    def many(self, sql: str, values: Sequence[Mapping[str, Any]]) -> None:
        execute_many(self._connection, sql, values)


def _rows(cursor: sqlite3.Cursor) -> list[Row]:
    if cursor.description is None:
        return []
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]
