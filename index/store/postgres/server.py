"""Connections to one PostgreSQL server, with its failures told as the store's own."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool, PoolTimeout

from kvproxy.index.errors import CacheStoreError, first_line
from kvproxy.index.store.postgres.schema import migrate

Row = dict[str, Any]
_CONNECT = 5  # Seconds.
_WAIT = 1.0  # Seconds that a request waits for a connection.
_REST = 5.0  # Seconds without another try after the server failed: a request without a cache must not be slow too.
_SESSION = (
    "set search_path = kvproxy, public",
    "set statement_timeout = '10s'",
    # Plans that know the namespace can use the graph of that namespace.
    "set plan_cache_mode = force_custom_plan",
    "set hnsw.ef_search = 64",
)


class PostgresServer:
    """A pool of connections; the schema is brought up to date first. Safe to use from several threads.

    Args:
        url: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`, as libpq takes it.
        connections: most that are open.

    Raises:
        CacheStoreError: the server cannot be reached, or lacks pgvector; the message names the fix.
    """

    def __init__(self, url: str, connections: int = 8) -> None:
        self.name = shown(url)
        self._failed: tuple[float, str] | None = None
        try:
            with psycopg.connect(url, autocommit=True, connect_timeout=_CONNECT) as connection:
                migrate(connection)
        except psycopg.OperationalError as error:
            raise CacheStoreError(
                f"cannot reach the store {self.name} ({first_line(error)}): start PostgreSQL, or correct --store"
            ) from None
        except psycopg.Error as error:
            raise CacheStoreError(
                f"cannot use the store {self.name} ({first_line(error)}):"
                " it needs the extension pgvector, and a user who may create a schema"
            ) from None
        self._pool = ConnectionPool(
            url,
            min_size=1,
            max_size=connections,
            timeout=_WAIT,
            kwargs={"autocommit": True, "row_factory": dict_row, "connect_timeout": _CONNECT},
            configure=_configure,
            open=True,
        )

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Row]]:
        """A connection, used by one thread at a time.

        Raises:
            CacheStoreError: the server failed, now or a few seconds ago.
        """
        if self._failed is not None and time.monotonic() < self._failed[0]:
            raise CacheStoreError(self._failed[1])
        try:
            with self._pool.connection() as connection:
                yield connection
            self._failed = None
        except (psycopg.Error, PoolTimeout) as error:
            message = f"the store {self.name} failed ({first_line(error)}): check the server, and kvproxy doctor"
            if isinstance(error, psycopg.OperationalError | PoolTimeout):
                self._failed = (time.monotonic() + _REST, message)
            raise CacheStoreError(message) from error

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()


def shown(url: str) -> str:
    """Where a server is, without password and options.

    Raises:
        CacheStoreError: the URL cannot be read.
    """
    try:
        parts = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise CacheStoreError(f"--store is no URL of PostgreSQL ({first_line(error)}): see docs/store.md") from None
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"postgresql://{parts.get('host') or 'localhost'}{port}/{parts.get('dbname') or ''}"


def _configure(connection: psycopg.Connection[Any]) -> None:
    for setting in _SESSION:
        connection.execute(setting.encode())
