"""A store by where it is: a file, or a PostgreSQL server."""

import time
from collections.abc import Callable
from pathlib import Path

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store.observations import Observations
from kvproxy.index.store.protocol import Capacity, Store
from kvproxy.index.store.sealing import Cipher
from kvproxy.index.store.sqlite.observations import SqliteObservations
from kvproxy.index.store.sqlite.store import SqliteStore

_SCHEMES = ("postgresql://", "postgres://")
_UNBOUNDED = Capacity()


def is_url(where: str) -> bool:
    """Whether a store is on a server."""
    return where.startswith(_SCHEMES)


def open_store(
    where: str | Path,
    *,
    clock: Callable[[], float] = time.time,
    capacity: Capacity = _UNBOUNDED,
    cipher: Cipher | None = None,
) -> Store:
    """Open a store.

    Args:
        where: a path, or `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`.
        clock: seconds since the epoch.
        capacity: how large it may grow.
        cipher: encrypts the texts; None stores them in clear.

    Raises:
        CacheStoreError: it cannot be opened; the message names the fix.
    """
    if is_url(str(where)):
        _need_driver()
        from kvproxy.index.store.postgres.store import PostgresStore

        return PostgresStore(str(where), clock=clock, capacity=capacity, cipher=cipher)
    return SqliteStore(Path(where), clock=clock, capacity=capacity, cipher=cipher)


def open_observations(where: str | Path) -> Observations:
    """What was observed of the entries of a store, kept in the same place.

    Raises:
        CacheStoreError: it cannot be opened; the message names the fix.
    """
    if is_url(str(where)):
        _need_driver()
        from kvproxy.index.store.postgres.observations import PostgresObservations

        return PostgresObservations(str(where))
    return SqliteObservations(Path(where))


def _need_driver() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise CacheStoreError("a store in PostgreSQL needs its driver: pip install 'kvproxy[postgres]'") from None
