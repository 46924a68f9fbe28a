"""The response store; start with store.py."""

import time
from collections.abc import Callable
from pathlib import Path

from kvproxy.index.store.database import Database
from kvproxy.index.store.observations import Observations
from kvproxy.index.store.rows import EntryCipher
from kvproxy.index.store.sqlite.database import SqliteDatabase
from kvproxy.index.store.store import Store
from kvproxy.index.store.store_types import (
    ALL_ENTRIES,
    AnswerComputation,
    Capacity,
    EntryFilter,
    NewEntry,
    RemovalReason,
    RemovedEntry,
    StoredQuestion,
    UsageKey,
    WriteResult,
)
from kvproxy.index.store_location import is_url

__all__ = [
    "ALL_ENTRIES",
    "AnswerComputation",
    "Capacity",
    "EntryFilter",
    "NewEntry",
    "RemovalReason",
    "RemovedEntry",
    "Store",
    "StoredQuestion",
    "UsageKey",
    "WriteResult",
    "open_observations",
    "open_postgres",
    "open_store",
]


def open_store(
    location: str | Path,
    *,
    clock: Callable[[], float] = time.time,
    capacity: Capacity = Capacity(),
    cipher: EntryCipher | None = None,
    accepts_constant: bool = False,
) -> Store:
    """Open a store, and create it if it does not exist; raises a CacheStoreError.

    Args:
        location: a path, or `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`.
        cipher: encrypts texts; None disables encryption.
        accepts_constant: open a file on a read-only file system, too, for reads.
    """
    return Store(
        _open_database(location, accepts_constant=accepts_constant), clock=clock, capacity=capacity, cipher=cipher
    )


def open_observations(location: str | Path) -> Observations:
    return Observations(_open_database(location, accepts_constant=True))


def _open_database(location: str | Path, *, accepts_constant: bool) -> Database:
    if is_url(str(location)):
        return open_postgres(str(location))
    return SqliteDatabase(Path(location), accepts_constant=accepts_constant)


def open_postgres(url: str) -> Database:
    from kvproxy.index.store.postgres.database import PostgresDatabase

    return PostgresDatabase(url)
