"""Runs a store's statements in SQLite."""

import contextlib
import json
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvproxy.index.errors import CacheStoreError, StoreDamaged
from kvproxy.index.sqlite_files import (
    DatabaseFiles,
    cannot_change,
    check_file,
    connect,
    create_schema,
    make_files_private,
)
from kvproxy.index.store.database import (
    Operation,
    Row,
    StoreHealth,
    Transaction,
    WriteTransaction,
    list_parameter,
    write_demand,
)
from kvproxy.index.store.rows import SERVABLE_UNTIL

if TYPE_CHECKING:
    import numpy as np

_VERSION = 1  # Increase it with every change of the schema.
# Triggers maintain the totals, so that no write counts rows. Vector numbers are never reused.
_SCHEMA = (
    "create table responses (id text primary key, key text not null unique, namespace text not null, tenant text not null,"
    " model text not null, endpoint text not null, prompt text not null, semantic integer not null, request blob not null,"
    " response blob not null, created float not null, expires float not null, stale_while_revalidate float not null,"
    " stale_if_error float not null, hits integer not null, last_hit float, prompt_tokens integer not null,"
    " completion_tokens integer not null, tags text not null, backend text not null, request_id text not null,"
    " sealed text not null, checksum text not null, bytes integer not null, priority float not null)",
    "create index responses_created on responses (created)",
    "create index responses_priority on responses (priority, id)",
    "create index responses_tenant on responses (tenant, priority, id, bytes)",
    "create index responses_sealed on responses (sealed) where sealed <> ''",
    "create index responses_semantic on responses (id) where semantic = 1",
    f"create index responses_servable on responses (({SERVABLE_UNTIL}))",
    "create table tags (tag text not null, id text not null, primary key (tag, id)) without rowid",
    "create index tags_id on tags (id)",
    "create table vectors (number integer primary key autoincrement, id text not null, embedder text not null,"
    " namespace text not null, vector blob not null)",
    "create unique index vectors_id on vectors (id, embedder)",
    "create index vectors_namespace on vectors (embedder, namespace, number, id)",
    "create table answers (entry text primary key, namespace text not null, name text not null, text text not null)"
    " without rowid",
    "create index answers_text on answers (namespace, text)",
    "create table totals (entries integer not null, bytes integer not null, age float not null)",
    "insert into totals values (0, 0, 0)",
    "create table tenants (tenant text primary key, entries integer not null, bytes integer not null)",
    "create trigger responses_added after insert on responses begin"
    " update totals set entries = entries + 1, bytes = bytes + new.bytes;"
    " insert into tenants values (new.tenant, 1, new.bytes)"
    " on conflict (tenant) do update set entries = entries + 1, bytes = bytes + excluded.bytes; end",
    "create trigger responses_removed after delete on responses begin"
    " update totals set entries = entries - 1, bytes = bytes - old.bytes;"
    " update tenants set entries = entries - 1, bytes = bytes - old.bytes where tenant = old.tenant;"
    " delete from tenants where tenant = old.tenant and entries = 0;"
    " delete from answers where entry = old.id; end",
    'create table observations (number integer primary key, entry text not null, "right" integer not null,'
    " source text not null, accepted integer not null, created float not null, namespace text not null,"
    " details text not null)",
    "create index observations_entry on observations (entry, number)",
    "create index observations_verdicts on observations (entry, number) where source = 'user'",
    "create index observations_namespace on observations (namespace, number)",
    "create table learned (namespace text primary key, number integer not null, state text not null,"
    " pruned integer not null default 0)",
    "create table pruned_totals (observed integer not null, agreed integer not null, accepted integer not null,"
    " accepted_wrong integer not null)",
    "insert into pruned_totals values (0, 0, 0, 0)",
)
# Not in the schema, because stores of the same version may lack it.
_INVALIDATIONS = (
    "create table if not exists invalidations (number integer primary key autoincrement, key text not null,"
    " namespace text not null, tag text not null)"
)
_NO_VALUES: Mapping[str, Any] = {}


class SqliteDatabase:
    """A `Database` in an SQLite file, with a connection for writes, and one for each concurrent read.

    The constructor raises StoreDamaged if the file is not a readable store. `accepts_constant` opens files on a read-only file
    system, too, for reads.
    """

    remote = False

    def __init__(self, path: Path, *, accepts_constant: bool = False) -> None:
        self.path = path
        self._accepts_constant = accepts_constant
        self.name = str(path)
        self.health = StoreHealth(self.name)
        self._write_lock = threading.RLock()
        self._readers: deque[sqlite3.Connection] = deque()
        self._is_durable = True
        self.is_closed = False
        try:
            check_file(path, f"the store {path}", _VERSION)
            make_files_private(path)
            with contextlib.ExitStack() as opened:
                self._writer = self._connect()
                opened.callback(self.close)
                create_schema(self._writer, f"the store {path}", _VERSION, _SCHEMA)
                if not (accepts_constant and cannot_change(path)):
                    self._writer.execute(_INVALIDATIONS)
                with self.reader() as reader:
                    reader.execute("select count(*) from totals").fetchone()
                self._files = DatabaseFiles(path, self._writer)
                opened.pop_all()
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
        transaction = _SqliteTransaction(self._writer)
        with self._write_lock, self.converting_errors("write", transaction=transaction), self._writer:
            if durable != self._is_durable:
                self._writer.execute(f"pragma synchronous={'full' if durable else 'normal'}")
                self._is_durable = durable
            self._writer.execute("begin immediate")
            yield transaction

    @contextlib.contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        reader = self._take_reader()
        try:
            yield reader
        finally:
            self._give_back(reader)

    def query(self, sql: str, values: Mapping[str, Any] = _NO_VALUES) -> list[Row]:
        with self.converting_errors("read"):
            reader = self._take_reader()
            try:
                return _rows(reader.execute(sql, values))
            finally:
                self._give_back(reader)

    def _take_reader(self) -> sqlite3.Connection:
        try:
            return self._readers.pop()
        except IndexError:
            return self._connect()

    def _give_back(self, reader: sqlite3.Connection) -> None:
        self._readers.append(reader)
        if self.is_closed:
            # The database was closed during the read.
            self._close_readers()

    def _connect(self) -> sqlite3.Connection:
        return connect(self.path, accepts_constant=self._accepts_constant)

    def in_list(self, column: str, values: Sequence[str | int]) -> tuple[str, Row]:
        name = list_parameter(column)
        return f"{column} in (select value from json_each(:{name}))", {name: json.dumps(list(values))}

    def storable_row(self, row: Row) -> Row:
        return row

    def as_vector_parameter(self, vector: "np.ndarray") -> bytes:
        return vector.astype("float32").tobytes()

    def read_vector(self, value: bytes) -> "np.ndarray":
        import numpy as np

        return np.frombuffer(value, np.float32)

    def disk_bytes(self) -> int:
        return sum(part.stat().st_size for part in self.path.parent.glob(self.path.name + "*") if part.is_file())

    def failure(self) -> str | None:
        with contextlib.suppress(CacheStoreError), self.converting_errors("read", check_now=True):
            self.query("select entries from totals")
        return self.health.failure

    def expect_answers(self, max_silence: float) -> None: ...

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
        self.is_closed = True
        self._writer.close()
        self._close_readers()

    def _close_readers(self) -> None:
        # Two threads may close at the same time.
        with contextlib.suppress(IndexError):
            while True:
                self._readers.pop().close()

    def converting_errors(
        self, operation: Operation, *, check_now: bool = False, transaction: WriteTransaction | None = None
    ) -> "_ConvertingErrors":
        """Raise a CacheStoreError for an error of SQLite, or if the files were replaced (see `DatabaseFiles.were_replaced`)."""
        return _ConvertingErrors(self, operation, check_now=check_now, transaction=transaction)

    def check_files(self, *, check_now: bool) -> None:
        """Raise a CacheStoreError if the files were replaced."""
        if self._files.were_replaced(check_now=check_now):
            with self._write_lock:
                self._files.checkpoint()
            raise CacheStoreError(
                f"the store {self.path} was deleted or replaced: restart, or open the cache again, to use what is there now"
            )


class _ConvertingErrors:
    """The context manager of `SqliteDatabase.converting_errors`. A generator would take as long as a statement."""

    def __init__(
        self, database: SqliteDatabase, operation: Operation, *, check_now: bool, transaction: WriteTransaction | None
    ) -> None:
        self._database = database
        self._transaction = transaction
        self._operation: Operation = operation
        self._check_now = check_now or operation == "write"

    def __enter__(self) -> None:
        database = self._database
        if database.is_closed:
            raise CacheStoreError(f"the store {database.path} is closed")
        try:
            database.check_files(check_now=self._check_now)
        except CacheStoreError as error:
            database.health.failed(self._operation, error)
            raise

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        database, transaction = self._database, self._transaction
        demand = 0 if transaction is None else transaction.demand
        if error is None:
            database.health.worked(self._operation, demand)
        elif isinstance(error, CacheStoreError):
            database.health.failed(self._operation, error, demand)
        elif isinstance(error, sqlite3.Error | UnicodeDecodeError):
            failure = _explain(database.path, error)
            database.health.failed(self._operation, failure, demand)
            raise failure from error


def _explain(path: Path, error: Exception) -> CacheStoreError:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return CacheStoreError(f"another process has locked the store {path}: try again after it has ended")
    return CacheStoreError(f"the store {path} failed ({error}): check the disk, and kvproxy doctor")


class _SqliteTransaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.demand = 0

    def __call__(self, sql: str, values: Mapping[str, Any] = _NO_VALUES) -> list[Row]:
        self.demand = max(self.demand, write_demand(sql))
        return _rows(self._connection.execute(sql, values))

    def executemany(self, sql: str, values: Sequence[Mapping[str, Any]]) -> None:
        self.demand = max(self.demand, write_demand(sql) if values else 0)
        self._connection.executemany(sql, values)


def _rows(cursor: sqlite3.Cursor) -> list[Row]:
    rows = cursor.fetchall()
    # Most queries for exact hits find no row.
    names = [column[0] for column in cursor.description] if rows else []
    return [dict(zip(names, row, strict=True)) for row in rows]


def _cannot_open(path: Path, reason: str) -> CacheStoreError:
    return CacheStoreError(
        f"cannot open the store {path} ({reason}): name one that can be written to, on a disk with room"
    )
