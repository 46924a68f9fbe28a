import contextlib
import json
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvproxy.index.errors import CacheStoreError, StoreDamaged
from kvproxy.index.store.database import Operation, Row, StoreHealth, Transaction
from kvproxy.index.store.sqlite.connection import DatabaseFiles, connect, create_schema, make_private
from kvproxy.index.store.sqlite.schema import SCHEMA, VERSION

_NO_VALUES: Mapping[str, Any] = {}


class SqliteDatabase:
    """A `Database` in an SQLite file, with a connection for writes, and one for each concurrent read.

    The constructor raises StoreDamaged if the file is not a readable store.
    """

    remote = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self.health = StoreHealth(self.name)
        self._write_lock = threading.RLock()
        self._readers: deque[sqlite3.Connection] = deque()
        self._is_durable = True
        self._is_closed = False
        try:
            make_private(path)
            self._writer = connect(path)
            create_schema(self._writer, f"the store {path}", VERSION, SCHEMA)
            with self.reader() as reader:
                reader.execute("select count(*) from totals").fetchone()
            self._files = DatabaseFiles(path, self._writer)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            # SQLite's message about a damaged schema can be invalid UTF-8.
            if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
                raise _cannot_open(path, str(error)) from None
            raise StoreDamaged(
                f"the store {path} is damaged ({error}): move it away to start with an empty one, or restore a backup"
            ) from None
        except OSError as error:
            raise _cannot_open(path, str(error.strerror)) from None

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[Transaction]:
        with self._write_lock, self.converting_errors("write"), self._writer:
            if durable != self._is_durable:
                self._writer.execute(f"pragma synchronous={'full' if durable else 'normal'}")
                self._is_durable = durable
            self._writer.execute("begin immediate")
            yield _SqliteTransaction(self._writer)

    @contextlib.contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        try:
            reader = self._readers.pop()
        except IndexError:
            reader = connect(self.path)
        try:
            yield reader
        finally:
            self._readers.append(reader)

    def query(self, sql: str, values: Mapping[str, Any] = _NO_VALUES) -> list[Row]:
        with self.converting_errors("read"), self.reader() as reader:
            return _rows(reader.execute(sql, values))

    def in_list(self, column: str, name: str) -> str:
        return f"{column} in (select value from json_each(:{name}))"

    def as_list_parameter(self, values: Sequence[str]) -> str:
        return json.dumps(list(values))

    def storable_text(self, text: str) -> str:
        return text

    def as_vector_parameter(self, vector: np.ndarray) -> bytes:
        return vector.astype(np.float32).tobytes()

    def disk_bytes(self) -> int:
        return sum(part.stat().st_size for part in self.path.parent.glob(self.path.name + "*") if part.is_file())

    def vacuum(self) -> None:
        with self._write_lock, self.converting_errors("write"):
            self._writer.execute("vacuum")
            self._writer.execute("pragma wal_checkpoint(truncate)")

    def count_intact_responses(self) -> int:
        verdict = self.query("pragma integrity_check")[0]["integrity_check"]
        if verdict != "ok":
            raise StoreDamaged(f"the store {self.path} is damaged ({verdict}): restore a backup, or move it away")
        return int(self.query("select count(*) as entries from responses")[0]["entries"])

    def close(self) -> None:
        self._is_closed = True
        self._writer.close()
        while self._readers:
            self._readers.pop().close()

    @contextlib.contextmanager
    def converting_errors(self, operation: Operation, *, check_now: bool = False) -> Iterator[None]:
        """Raise a CacheStoreError for an error of SQLite, or if the files were replaced (see `DatabaseFiles.were_replaced`)."""
        if self._is_closed:
            raise CacheStoreError(f"the store {self.path} is closed")
        with self.health.watch(operation):
            if self._files.were_replaced(check_now=check_now or operation == "write"):
                with self._write_lock:
                    self._files.checkpoint()
                raise CacheStoreError(
                    f"the store {self.path} was deleted or replaced: restart to use what is there now"
                )
            try:
                yield
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise CacheStoreError(
                    f"the store {self.path} failed ({error}): check the disk, and kvproxy doctor"
                ) from error


class _SqliteTransaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __call__(self, sql: str, values: Mapping[str, Any] = _NO_VALUES) -> list[Row]:
        return _rows(self._connection.execute(sql, values))

    def executemany(self, sql: str, values: Sequence[Mapping[str, Any]]) -> None:
        self._connection.executemany(sql, values)


def _rows(cursor: sqlite3.Cursor) -> list[Row]:
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _cannot_open(path: Path, reason: str) -> CacheStoreError:
    return CacheStoreError(
        f"cannot open the store {path} ({reason}): name one that can be written to, on a disk with room"
    )
