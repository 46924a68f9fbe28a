"""Empty stores of all kinds."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvproxy.index.store import Store, open_store
from kvproxy.index.store_location import is_url
from kvproxy.privacy.encryption import Cipher
from tests.postgres_server import empty

MakeStore = Callable[..., Any]
CIPHER = Cipher([bytes(32)])


@pytest.fixture
def open_file(tmp_path: Path) -> Iterator[MakeStore]:
    """Opens a store in a file, by default `r.db`, or at a URL; the end of the test closes it."""
    with contextlib.ExitStack() as stack:

        def opened(name: str = "r.db", **options: Any) -> Store:
            location = name if is_url(name) else tmp_path / name
            return stack.enter_context(contextlib.closing(open_store(location, **options)))

        yield opened


@pytest.fixture
def store(open_file: MakeStore) -> Store:
    """Return an empty store in the file `r.db`."""
    return open_file()


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
            store: Store = open_store(tmp_path / last, **options)
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
