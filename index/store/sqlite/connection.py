"""Connects to an SQLite file and brings its schema up to date, for any number of processes at once."""

import contextlib
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kvproxy.index.private_files import private_file, take_rights

if TYPE_CHECKING:
    from sqlite_utils import Database

Step = Callable[["Database"], None]
_PATIENCE = 10.0  # Seconds that a process waits for another one's transaction.
_STATEMENTS = 256
"""Statements that are kept ready. Those over many rows come in nine sizes each (see `many`): too many for the default of 128."""


def make_private(path: Path) -> None:
    """Make the file and its folder where they are missing; none of SQLite's files at the path is for others to read.

    Raises:
        OSError: the file cannot be made, or is a folder.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private_file(path)
    for name in (f"{path.name}-wal", f"{path.name}-shm"):
        # SQLite makes them with the rights of the file itself; an earlier version may have left others.
        with contextlib.suppress(OSError):
            take_rights(path.with_name(name))


def connect(path: Path) -> sqlite3.Connection:
    """A connection whose commits are durable when they return, for any thread.

    Raises:
        sqlite3.DatabaseError: the file is no database, is damaged, or cannot be opened.
    """
    connection = sqlite3.connect(path, check_same_thread=False, timeout=_PATIENCE, cached_statements=_STATEMENTS)
    # One damaged character would fail the query for all of its rows. An entry with a replaced one does not match its checksum.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    try:
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                connection.execute("pragma journal_mode=wal")
                break
            except sqlite3.OperationalError as error:
                # SQLite does not wait here by itself while another process opens a new file.
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.01)
        connection.execute("pragma synchronous=full")
    except BaseException:
        connection.close()
        raise
    return connection


def apply_steps(connection: sqlite3.Connection, name: str, steps: Sequence[Step]) -> None:
    """Apply the steps that a file does not have yet, all of them or none.

    Args:
        connection: to the file.
        name: of these steps; a file may have several sequences of them.
        steps: in order, each recorded under the name of its function.

    Raises:
        sqlite3.DatabaseError: the file is no database, or is damaged.
    """
    if {step.__name__ for step in steps} <= _applied(connection, name):
        return
    with _without_pandas():
        from sqlite_utils import Database, Migrations
    migrations = Migrations(name)
    for step in steps:
        migrations(name=step.__name__)(step)
    database = Database(connection, execute_plugins=False)
    with connection:
        # Another process may apply the same steps: this waits for it, and sees then what is left to do.
        connection.execute("begin immediate")
        migrations.apply(database)


def _applied(connection: sqlite3.Connection, name: str) -> set[str]:
    """The steps that a file has; most starts need no more than this, and so no import."""
    table = "select 1 from sqlite_master where name = '_sqlite_migrations'"
    if connection.execute(table).fetchone() is None:
        return set()
    return {
        step for (step,) in connection.execute("select name from _sqlite_migrations where migration_set = ?", [name])
    }


@contextlib.contextmanager
def _without_pandas() -> Iterator[None]:
    """Hide pandas while sqlite-utils is imported, which loads it (0.3 s, 40 MB) for a type of column that no step uses."""
    if "pandas" in sys.modules or "sqlite_utils" in sys.modules:
        yield
        return
    sys.modules["pandas"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["pandas"]
