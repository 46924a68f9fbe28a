"""Opens a response store: a file, or a PostgreSQL database."""

import time
from collections.abc import Callable
from pathlib import Path

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store.database import Database
from kvproxy.index.store.row_codec import EntryCipher
from kvproxy.index.store.sql_observations import SqlObservations
from kvproxy.index.store.sqlite.database import SqliteDatabase
from kvproxy.index.store.sqlite.store import SqliteStore
from kvproxy.index.store.store import Store
from kvproxy.index.store.values import Capacity

_SCHEMES = ("postgresql://", "postgres://")


def is_url(where: str) -> bool:
    return where.startswith(_SCHEMES)


def open_store(
    where: str | Path,
    *,
    clock: Callable[[], float] = time.time,
    capacity: Capacity = Capacity(),
    cipher: EntryCipher | None = None,
) -> Store:
    """Open a store.

    Args:
        where: a path, or `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`.
        clock: seconds since the epoch.
        capacity: the maximal size.
        cipher: encrypts the texts; None stores them without encryption.

    Raises:
        CacheStoreError: it cannot be opened.
    """
    if is_url(str(where)):
        _require_driver()
        from kvproxy.index.store.postgres.store import PostgresStore

        return PostgresStore(str(where), clock=clock, capacity=capacity, cipher=cipher)
    return SqliteStore(Path(where), clock=clock, capacity=capacity, cipher=cipher)


def open_observations(where: str | Path) -> SqlObservations:
    """Open the observations of a store.

    Raises:
        CacheStoreError: they cannot be opened.
    """
    database: Database
    if is_url(str(where)):
        _require_driver()
        from kvproxy.index.store.postgres.database import PostgresDatabase

        database = PostgresDatabase(str(where))
    else:
        database = SqliteDatabase(Path(where))
    return SqlObservations(database)


def _require_driver() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise CacheStoreError("a store in PostgreSQL needs its driver: pip install 'kvproxy[postgres]'") from None
