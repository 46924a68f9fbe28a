"""Runs a store's statements in PostgreSQL."""

import contextlib
import functools
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import psycopg
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool, PoolTimeout

from kvproxy.index.errors import CacheStoreError, InvalidValue, StoreDamaged, StoreUnreachable, first_line
from kvproxy.index.store.database import Row, StoreHealth, Transaction, list_parameter, write_demand
from kvproxy.index.store.postgres.schema import create_schema
from kvproxy.index.store.postgres.watched_connection import ServerAnswers, ServerSilent, WatchedConnection
from kvproxy.index.store_location import location_error

_CONNECT_TIMEOUT = 5  # Seconds.
_POOL_TIMEOUT = 1.0  # Seconds.
_RETRY_DELAY = 5.0  # Seconds without another attempt after a failure.
_MAX_CONNECTIONS = 8
_MAX_SILENCE = 15.0  # Seconds: longer than the timeout of a statement.
_SET_TIMEOUT = b"set statement_timeout = '10s'"
_SESSION = (b"set search_path = kvproxy, public", _SET_TIMEOUT, b"set hnsw.ef_search = 200")
# An unreachable server is detected within about 10 seconds.
TCP_OPTIONS: dict[str, Any] = {
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
_NO_VALUES: Mapping[str, Any] = {}


class PostgresDatabase:
    remote = True

    def __init__(self, url: str) -> None:
        self.name = display_name(url)
        self.health = StoreHealth(self.name)
        self._failed: tuple[float, str] | None = None
        self._trying = threading.Lock()
        self._answers = ServerAnswers(_MAX_SILENCE)
        self._pool = ConnectionPool(
            url,
            connection_class=WatchedConnection[Row],
            min_size=1,
            max_size=_MAX_CONNECTIONS,
            timeout=_POOL_TIMEOUT,
            reconnect_timeout=_POOL_TIMEOUT,
            kwargs={"autocommit": True, "row_factory": dict_row, "connect_timeout": _CONNECT_TIMEOUT, **TCP_OPTIONS},
            configure=self._configure,
            open=False,
        )
        try:
            with psycopg.connect(url, autocommit=True, connect_timeout=_CONNECT_TIMEOUT) as connection:
                create_schema(connection, f"the store {self.name}")
            self._pool.open(wait=True, timeout=_CONNECT_TIMEOUT)
        except psycopg.OperationalError as error:
            self._pool.close()
            raise CacheStoreError(
                f"cannot reach the store {self.name} ({first_line(error)}): start PostgreSQL, or correct its URL"
            ) from None
        except psycopg.Error as error:
            raise CacheStoreError(
                f"cannot use the store {self.name} ({first_line(error)}):"
                " it needs the extension pgvector, which a superuser creates in this database with CREATE EXTENSION vector,"
                " and a user who may create a schema"
            ) from None

    def expect_answers(self, max_silence: float) -> None:
        self._answers.max_silence = max_silence

    @contextlib.contextmanager
    def connection(self) -> Iterator[WatchedConnection[Row]]:
        """Return a connection of the pool. In the five seconds after a failure, raise a CacheStoreError immediately."""
        try:
            if self._failed is not None:
                self._try_again()
            with self._pool.connection() as connection:
                yield connection
        except (psycopg.Error, PoolTimeout) as error:
            if isinstance(error, psycopg.DataError):
                raise InvalidValue(
                    f"the store {self.name} cannot compute or store a value: {first_line(error)}"
                ) from error
            message = f"the store {self.name} failed ({first_line(error)}): check the server, and kvproxy doctor"
            # With a full disk, the database can still be reached.
            is_full = isinstance(error, psycopg.errors.DiskFull)
            if isinstance(error, psycopg.OperationalError | PoolTimeout) and not is_full:
                self._failed = (time.monotonic() + _RETRY_DELAY, message)
                raise StoreUnreachable(message) from error
            raise CacheStoreError(message) from error

    @contextlib.contextmanager
    def patient_connection(self) -> Iterator[WatchedConnection[Row]]:
        """Return a connection for statements that may take hours."""
        with self.connection() as connection:
            connection.execute("set statement_timeout = 0")
            connection.answers = None
            try:
                yield connection
            finally:
                connection.answers = self._answers
                connection.execute(_SET_TIMEOUT)

    def _configure(self, connection: WatchedConnection[Row]) -> None:
        connection.answers = self._answers
        for setting in _SESSION:
            connection.execute(setting)

    def _try_again(self) -> None:
        """Let one thread try a failed server again after the delay. Raises StoreUnreachable in all other threads.

        Remove the connections that a restart of the server has closed; each would fail a request, and cause a delay.
        """
        with self._trying:
            if self._failed is None:
                return
            retry_at, message = self._failed
            if time.monotonic() < retry_at:
                raise StoreUnreachable(message)
            self._failed = (time.monotonic() + _RETRY_DELAY, message)
        for _ in range(_MAX_CONNECTIONS):
            with self._pool.connection() as connection:
                try:
                    connection.execute("select 1")
                except ServerSilent:
                    raise
                except psycopg.OperationalError:
                    continue
                self._failed = None
                self.health.is_reachable()
                return

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[Transaction]:
        transaction = _PostgresTransaction()
        with self.health.watch("write", transaction), self.connection() as connection, connection.transaction():
            transaction.connection = connection
            if not durable:
                connection.execute("set local synchronous_commit = off")
            # This lock allows one writer at a time: there are no deadlocks, and numbers become visible in order.
            connection.execute("select 1 from totals for update")
            yield transaction

    def query(self, sql: str, values: Mapping[str, Any] = _NO_VALUES, *, prepare: bool | None = None) -> list[Row]:
        """Return the rows of a statement. Statements that are executed often are prepared, unless `prepare` is False."""
        with self.health.watch("read"), self.connection() as connection:
            return _rows(connection.execute(_placeholders(sql), values, prepare=prepare))

    def in_list(self, column: str, values: Sequence[str | int]) -> tuple[str, Row]:
        name = list_parameter(column)
        return f"{column} = any(:{name})", {name: list(values)}

    def storable_row(self, row: Row) -> Row:
        return {name: value.replace("\x00", "") if isinstance(value, str) else value for name, value in row.items()}

    def as_vector_parameter(self, vector: np.ndarray) -> str:
        return f"[{','.join(map(repr, vector.astype(np.float32).tolist()))}]"

    def read_vector(self, value: str) -> np.ndarray:
        return np.array(json.loads(value), np.float32)

    def disk_bytes(self) -> int:
        sql = "select pg_total_relation_size('responses') + pg_total_relation_size('vectors') as bytes"
        return int(self.query(sql)[0]["bytes"])

    def failure(self) -> str | None:
        return self.health.failure

    def vacuum(self) -> None: ...

    def count_intact_responses(self) -> int:
        sql = (
            "select (select count(*) from responses where length(request) + length(response) >= 0) as stored,"
            " (select entries from totals) as counted"
        )
        row = self.query(sql)[0]
        if row["stored"] != row["counted"]:
            raise StoreDamaged(
                f"the store {self.name} counts {row['counted']} responses but holds {row['stored']}: restore a backup"
            )
        return int(row["stored"])

    def close(self) -> None:
        self._pool.close()


class _PostgresTransaction:
    connection: psycopg.Connection[Row]

    def __init__(self) -> None:
        self.demand = 0

    def __call__(self, sql: str, values: Mapping[str, Any] = _NO_VALUES) -> list[Row]:
        self.demand = max(self.demand, write_demand(sql))
        return _rows(self.connection.execute(_placeholders(sql), values))

    def executemany(self, sql: str, values: Sequence[Mapping[str, Any]]) -> None:
        if values:
            self.demand = max(self.demand, write_demand(sql))
            with self.connection.cursor() as cursor:
                cursor.executemany(_placeholders(sql), values)


def display_name(url: str) -> str:
    """Return the URL without user, password, and options, for messages."""
    if (reason := location_error(url)) is not None:
        raise CacheStoreError(f"the URL of the store: {reason}")
    try:
        parts = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise CacheStoreError(f"the store is no URL of PostgreSQL ({first_line(error)}): see docs/store.md") from None
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{parts.get('host') or 'localhost'}{port}/{parts.get('dbname') or ''}"


@functools.lru_cache(maxsize=256)
def _placeholders(sql: str) -> bytes:
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", sql).encode()


def _rows(cursor: psycopg.Cursor[Row]) -> list[Row]:
    # `cursor.description` would build an object for each column.
    return cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []
