"""Statements over many rows at a time.

SQLite makes the rows of one statement by itself. Between two statements Python's lock is handed over and back, and a thread that
writes waits for it up to five milliseconds each time, while another one answers requests.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

SIZES = (64, 16, 4, 1)
"""Rows in one statement: few sizes, so that SQLite has each at hand."""
Each = TypeVar("Each")


def parts(rows: Sequence[Each]) -> Iterator[Sequence[Each]]:
    """Rows in their order, as many at a time as one statement takes."""
    done = 0
    for size in SIZES:
        while len(rows) - done >= size:
            yield rows[done : done + size]
            done += size


def insert_many(connection: sqlite3.Connection, begin: str, rows: Sequence[Sequence[Any]], end: str = "") -> None:
    """Insert rows.

    Args:
        begin: up to `values`.
        rows: of one width.
        end: what follows the values.
    """
    for part in parts(rows):
        sql = _repeated(f"{begin} ", f"({', '.join('?' * len(part[0]))})", ", ", end, len(part))
        connection.execute(sql, list(chain.from_iterable(part)))


def select_many(connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The rows of a statement for all of some values, which `(?)` in it stands for."""
    begin, end = sql.split("(?)")
    return [
        row
        for part in parts(values)
        for row in connection.execute(_repeated(f"{begin}(", "?", ", ", f"){end}", len(part)), part)
    ]


def select_each(connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The rows of a statement with one `?`, for one value after the other: each has its own order and limit."""
    return [
        row
        for part in parts(values)
        for row in connection.execute(_repeated("", f"select * from ({sql})", " union all ", "", len(part)), part)
    ]


@lru_cache(maxsize=128)
def _repeated(begin: str, each: str, between: str, end: str, times: int) -> str:
    return f"{begin}{between.join([each] * times)}{end}"
