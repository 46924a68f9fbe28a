"""Empty stores of all kinds, and a PostgreSQL server with pgvector."""

import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from kvproxy.encryption import Cipher
from kvproxy.index.store import SqliteStore, Store
from kvproxy.index.store.open_store import open_store

MakeStore = Callable[..., Any]
CIPHER = Cipher([bytes(32)])


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a server."""
    # The path of pytest's folder is too long for a Unix socket.
    with tempfile.TemporaryDirectory(prefix="pg") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pgserver

        server = pgserver.get_server(folder, cleanup_mode="stop")
        try:
            with psycopg.connect(server.get_uri(), autocommit=True) as connection:
                connection.execute("alter system set fsync = off")
                connection.execute("select pg_reload_conf()")
            yield server.get_uri()
        finally:
            server.cleanup()


@pytest.fixture
def empty_postgres(postgres: str) -> str:
    """URL of a server without a store."""
    empty(postgres)
    return postgres


def empty(url: str) -> None:
    """Drop the store on a server."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop schema if exists kvproxy cascade")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """Return an empty store in the file `r.db`."""
    opened = SqliteStore(tmp_path / "r.db")
    yield opened
    opened.close()


@pytest.fixture(params=["sqlite", "postgres", "encrypted"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeStore]:
    """Opens an empty store, or the last one with `again=True`."""
    opened: list[Store] = []
    names = itertools.count()
    last = ""

    def make(*, again: bool = False, **options: Any) -> Store:
        nonlocal last
        if request.param != "postgres":
            last = last if again else f"{next(names)}.db"
            if request.param == "encrypted":
                options = {"cipher": CIPHER} | options
            store: Store = SqliteStore(tmp_path / last, **options)
        else:
            url = request.getfixturevalue("postgres")
            if not again:
                empty(url)
            store = open_store(url, **options)
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()
