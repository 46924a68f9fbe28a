"""Brings the schema of an SQLite file up to date, through sqlite-utils."""

import contextlib
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database

Step = Callable[["Database"], None]


def apply_steps(connection: sqlite3.Connection, name: str, steps: Sequence[Step]) -> None:
    """Apply the steps that a file does not have yet, each in a transaction.

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
    migrations.apply(Database(connection, execute_plugins=False))


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
