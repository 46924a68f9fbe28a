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


def parts(rows: Sequence[Each], sizes: Sequence[int] = SIZES) -> Iterator[Sequence[Each]]:
    """Rows in their order, as many at a time as one statement takes; the sizes fall, the last one is 1."""
    done = 0
    for size in sizes:
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
    if rows:
        insert_values(connection, begin, len(rows[0]), list(chain.from_iterable(rows)), end=end)


def insert_values(
    connection: sqlite3.Connection,
    begin: str,
    width: int,
    values: Sequence[Any],
    sizes: Sequence[int] = SIZES,
    end: str = "",
) -> None:
    """Insert rows that are given by their values one after another.

    Args:
        begin, end: as above.
        width: of a row. SQLite takes 32,766 values by one statement.
        sizes: rows of one statement, as for `parts`.
    """
    row = f"({', '.join('?' * width)})"
    for part in parts(range(0, len(values), width), sizes):
        sql = _repeated(f"{begin} ", row, ", ", end, len(part))
        connection.execute(sql, values[part[0] : part[0] + width * len(part)])


def run_many(connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The rows that a statement gives for all of some values, which `(?)` in it stands for."""
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
