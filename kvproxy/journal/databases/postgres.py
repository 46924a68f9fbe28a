"""A journal in PostgreSQL, which several proxies write. Each day (UTC) has a partition of its records."""

import contextlib
import functools
import re
import select
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader

from kvproxy.errors import NotFound, SettingsError
from kvproxy.index.errors import first_line
from kvproxy.index.store.postgres.database import TCP_OPTIONS, display_name
from kvproxy.index.store.postgres.watched_connection import ServerAnswers, WatchedConnection
from kvproxy.journal.databases.database import InvalidQuery, JournalFailed
from kvproxy.journal.schema import (
    ADDED_COLUMNS,
    COLUMNS,
    OF_PROMPT,
    STRINGS,
    TABLES,
    TABLES_OF_TEAMS,
    VERSION,
    stored_column,
    stored_fields,
    unused_names_condition,
)

_LOCK = 0x6B766A6F75726E  # "kvjourn" in ASCII. Proxies that start at the same time create the schema one after another.
_DAY = 86_400
_Connection: TypeAlias = WatchedConnection[tuple[Any, ...]]
_RETRY_SECONDS = 2.0  # Between a failed connection and the next attempt.
_PRUNE_TIMEOUT = "5min"
_MAX_NUMBER = 2**62
_WRITER_TIMEOUT, _READER_TIMEOUT = 5, 2  # Seconds to connect.
_WRITER_SILENCE, _READER_SILENCE = 305.0, 35.0  # Seconds without an answer: longer than the timeouts of statements.
_IDLE_SECONDS = 1.0  # Readers check a connection that was idle for longer.
_SESSION = (
    "set search_path = kvproxy_journal",
    # A busy server may need seconds, and a batch waits for the batches of other proxies.
    "set statement_timeout = '30s'",
    "set idle_in_transaction_session_timeout = '10s'",
    # Compiling a query would take longer than most queries.
    "set jit = off",
)


def _postgres_ddl(statement: str) -> str:
    statement = re.sub(
        r"^(create table (?:names|prompts) \(number) integer", r"\1 bigint generated always as identity", statement
    )
    statement = re.sub(r"\b(entry|near) blob", r"\1 text", statement.removesuffix(" without rowid"))
    if statement.startswith("create table records "):
        statement = statement.replace(" primary key", " not null").removesuffix(")")
        statement += ", proxy bigint, primary key (number, time)) partition by range (time)"
    for name, type in (("integer", "bigint"), ("float", "float8"), ("blob", "bytea")):
        statement = re.sub(rf" {name}\b", f" {type}", statement)
    return statement


def _view_sql() -> str:
    joins = "".join(f" left join names n_{name} on n_{name}.number = r.{name}" for name in STRINGS)
    columns = ", ".join(map(_column_sql, COLUMNS))
    return f"create view requests as select {columns} from records r left join prompts p on p.number = r.prompt{joins}"


def _column_sql(name: str) -> str:
    if name in STRINGS:
        return f"n_{name}.name as {name}"
    if name in OF_PROMPT:
        return "encode(p.key, 'hex') as key" if name == "key" else f"p.{name}"
    return (
        f"r.{stored_column(name)} / 1000.0::float8 as {name}"
        if name.endswith("_ms")
        else f"r.{stored_column(name)} as {name}"
    )


_SCHEMA = (
    "create table schema_version (version integer not null)",
    f"insert into schema_version values ({VERSION})",
    # Writers lock its row, so that numbers become visible in order.
    "create table state (pruned bigint not null)",
    "insert into state values (0)",
    "create sequence record_numbers",
    *map(_postgres_ddl, TABLES),
    "create index on records using brin (time)",
    _view_sql(),
)


class PostgresJournalDatabase:
    """A connection to the journal, reopened after a failure. With `writable`, a missing schema is created."""

    columns: Sequence[str] = COLUMNS
    stored: Sequence[str] = stored_fields(COLUMNS)

    def __init__(self, url: str, *, writable: bool) -> None:
        self.name = display_name(url)
        self._url = url
        self._writable = writable
        self._connection: _Connection | None = None
        self._days: set[int] = set()
        self._pending: list[tuple[str, Sequence[object]]] = []
        self._next_attempt = 0.0
        self._last_used = 0.0

    def connect(self) -> None:
        if self._connection is not None:
            return
        if time.monotonic() < self._next_attempt:
            raise JournalFailed("the connection failed")
        self._next_attempt = time.monotonic() + _RETRY_SECONDS
        with self._errors():
            timeout = _WRITER_TIMEOUT if self._writable else _READER_TIMEOUT
            connection = WatchedConnection.connect(self._url, autocommit=True, connect_timeout=timeout, **TCP_OPTIONS)
            connection.answers = ServerAnswers(_WRITER_SILENCE if self._writable else _READER_SILENCE)
            try:
                _configure_connection(connection)
                _create_or_check_schema(connection, self.name, create=self._writable)
                if not self._writable:
                    connection.execute("set default_transaction_read_only = on")
            except BaseException:
                connection.close()
                raise
        self._connection, self._next_attempt = connection, 0.0

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._errors():
            connection = self._open()
            parameters = [_without_invalid_characters(value) for value in values]
            if self._pending:
                # One round trip for all.
                with connection.pipeline() as pipeline:
                    self._send_pending(connection)
                    cursor = connection.execute(_placeholders(sql), parameters)
                    pipeline.sync()
            else:
                cursor = connection.execute(_placeholders(sql), parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def execute(self, sql: str, values: Sequence[object]) -> None:
        self._pending.append((sql, values))

    def _send_pending(self, connection: _Connection) -> None:
        pending, self._pending = self._pending, []
        for sql, values in pending:
            connection.execute(_placeholders(sql), [_without_invalid_characters(value) for value in values])

    def _flush(self) -> None:
        if self._pending:
            with self._errors(), self._open().pipeline():
                self._send_pending(self._open())

    def executemany(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        if rows:
            self._flush()
            with self._errors(), self._open().cursor() as cursor:
                cursor.executemany(
                    _placeholders(sql), [[_without_invalid_characters(value) for value in row] for row in rows]
                )

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        if not rows:
            return
        self._flush()
        # A copy takes a fifth of the processor time of inserts.
        sql = f"copy {table} ({', '.join(columns)}) from stdin"
        with self._errors(), self._open().cursor() as cursor, cursor.copy(sql.encode()) as copy:
            for row in rows:
                copy.write_row([_without_invalid_characters(value) for value in row])

    @contextlib.contextmanager
    def transaction(self) -> Iterator[int]:
        self.connect()
        try:
            with self._errors(), self._open().transaction():
                yield int(self.rows("select pruned from state for update")[0][0])
                self._flush()
        except BaseException:
            # A rollback removes new partitions.
            self._days.clear()
            self._pending.clear()
            raise

    def reserve_numbers(self, times: Sequence[float]) -> int:
        for day in {int(arrived // _DAY) for arrived in times} - self._days:
            self._add_partition(day)
        last = self.rows("select setval('record_numbers', nextval('record_numbers') + ?)", [len(times) - 1])[0][0]
        return int(last) - len(times) + 1

    def _add_partition(self, day: int) -> None:
        name = f"records_{datetime.fromtimestamp(day * _DAY, UTC):%Y%m%d}"
        if self.rows("select to_regclass(?)", [name])[0][0] is None:
            # `partition of` would wait for readers of all partitions.
            self.rows(f"create table {name} (like records including all)")
            bounds = f"for values from ({day * _DAY}) to ({(day + 1) * _DAY})"
            self.rows(f"alter table records attach partition {name} {bounds}")
        self._days.add(day)

    def delete_oldest(self, before: float, max_rows: int) -> int:
        self.rows(f"set local statement_timeout = '{_PRUNE_TIMEOUT}'")
        sql = (
            "select inhrelid::regclass::text from pg_inherits where inhparent = 'records'::regclass order by 1 limit 1"
        )
        if not (rows := self.rows(sql)):
            return 0
        ((name,),) = rows
        end = datetime.strptime(name, "records_%Y%m%d").replace(tzinfo=UTC).timestamp() + _DAY
        last = self.rows(f"select max(number) from {name}")[0][0]
        newest = self.rows("select max(number) from records")[0][0]
        if end > before and (last is None or last > newest - max_rows):
            return 0
        count = self.rows(f"select count(*) from {name}")[0][0]
        try:
            with self._open().transaction():
                # A drop waits for readers, and new readers wait for the drop.
                self._open().execute("set local lock_timeout = '1s'")
                self._open().execute(f"drop table {name}".encode())
        except psycopg.errors.LockNotAvailable:
            return 0
        self._days.clear()
        self.rows("delete from prompts where last < (select coalesce(min(number), ?) from records)", [_MAX_NUMBER])
        self.rows("update state set pruned = pruned + 1")
        return max(1, int(count))

    def delete_unused_names(self) -> None:
        self.rows(f"set local statement_timeout = '{_PRUNE_TIMEOUT}'")
        self.rows(f"delete from names where {unused_names_condition(self.stored)}")
        # Other proxies then forget the numbers of names.
        self.rows("update state set pruned = pruned + 1")

    def stored_id(self, id: str) -> str:
        return id

    def integer_part_sql(self, expression: str) -> str:
        return f"floor({expression})::bigint"

    def utc_day_sql(self) -> str:
        return "to_char(to_timestamp(time) at time zone 'UTC', 'YYYY-MM-DD')"

    def tag_rows_sql(self) -> str:
        return "requests, unnest(string_to_array(tags, ',')) as value"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> _Connection:
        now = time.monotonic()
        is_idle = not self._writable and now - self._last_used > _IDLE_SECONDS
        if self._connection is not None and is_idle and not _is_open(self._connection):
            self._disconnect()
        if self._connection is None:
            self.connect()
        assert self._connection is not None
        self._last_used = now
        return self._connection

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (
            psycopg.errors.UndefinedTable,
            psycopg.errors.InvalidSchemaName,
            psycopg.errors.CheckViolation,
            psycopg.errors.ReadOnlySqlTransaction,
        ) as error:
            if not self._writable:
                raise InvalidQuery(first_line(error)) from error
            # The tables were removed or restored, or the server became a standby.
            self._disconnect()
            raise JournalFailed(first_line(error)) from error
        except (
            psycopg.ProgrammingError,
            psycopg.DataError,
            psycopg.IntegrityError,
            psycopg.NotSupportedError,
        ) as error:
            raise InvalidQuery(first_line(error)) from error
        except psycopg.Error as error:
            self._disconnect()
            raise JournalFailed(first_line(error)) from error

    def _disconnect(self) -> None:
        self._days.clear()
        self.close()


def _is_open(connection: _Connection) -> bool:
    """Whether the server kept an idle connection open. Raises OperationalError if it does not answer in time."""
    server = connection.pgconn
    try:
        server.send_query(b"")
        answer = select.poll()
        answer.register(server.socket, select.POLLIN)
        while server.is_busy():
            if not answer.poll(_READER_TIMEOUT * 1000):
                raise psycopg.errors.ConnectionTimeout("the server does not answer")
            server.consume_input()
        while server.get_result() is not None:
            pass
    except psycopg.errors.ConnectionTimeout:
        raise
    except psycopg.OperationalError:
        return False
    return not connection.closed


def _configure_connection(connection: psycopg.Connection[Any]) -> None:
    connection.adapters.register_loader("numeric", _NumberLoader)
    for setting in _SESSION:
        connection.execute(setting.encode())


def _create_or_check_schema(connection: psycopg.Connection[Any], name: str, *, create: bool) -> None:
    with connection.transaction():
        if create:
            connection.execute("select pg_advisory_xact_lock(%s)", [_LOCK])
        if connection.execute("select to_regclass('kvproxy_journal.schema_version')").fetchone() == (None,):
            if not create:
                raise NotFound(f"no journal in {name}: kvproxy serve writes one")
            connection.execute("create schema if not exists kvproxy_journal")
            for statement in _SCHEMA:
                connection.execute(statement.encode())
        row = connection.execute("select version from schema_version").fetchone()
        if row != (VERSION,):
            raise SettingsError(
                f"another version of kvproxy created the journal in {name}: rename its schema kvproxy_journal, or set"
                ' journal.store = "file"'
            )
        if create:
            _add_columns(connection)


def _add_columns(connection: psycopg.Connection[Any]) -> None:
    sql = "select 1 from pg_attribute where attrelid = %s::regclass and attname = %s"
    missing = [
        (table, column)
        for table, column in ADDED_COLUMNS
        if connection.execute(sql, [table, column.partition(" ")[0]]).fetchone() is None
    ]
    for table, column in missing:
        connection.execute(_postgres_ddl(f"alter table {table} add column {column}").encode())
    if missing:
        for statement in TABLES_OF_TEAMS:
            connection.execute(_postgres_ddl(statement).encode())
        connection.execute("drop view requests")
        connection.execute(_view_sql().encode())


class _NumberLoader(Loader):
    def load(self, data: Buffer) -> int | float:
        text = bytes(data)
        return float(text) if b"." in text else int(text)


def _without_invalid_characters(value: object) -> object:
    if not isinstance(value, str) or (value.isascii() and "\x00" not in value):
        return value
    return value.encode("utf-8", "replace").decode().replace("\x00", "")


@functools.lru_cache(maxsize=1024)
def _placeholders(sql: str) -> bytes:
    parts = re.split(r"('(?:[^']|'')*')", sql.replace("%", "%%"))
    return "".join(part if part.startswith("'") else part.replace("?", "%s") for part in parts).encode()
