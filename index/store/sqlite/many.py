"""Statements over many rows at a time.

SQLite makes the rows of one statement by itself. Between two statements Python's lock is handed over and back, and a thread that
writes waits for it up to five milliseconds each time, while another one answers requests. So rows are padded to a power of
two, and one statement takes them all. There are few such statements, and SQLite keeps them ready. The lock is
handed over for each row that is read, too.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

_MOST = 256
"""Rows of one statement: a power of two, as are the others."""
_PADDING = 0  # No None: Python's sqlite3 takes ten times as long over it.
Each = TypeVar("Each")


def insert_many(connection: sqlite3.Connection, begin: str, rows: Sequence[Sequence[Any]], end: str = "") -> None:
    """Insert rows, in their order.

    Args:
        begin: up to the names of the columns.
        rows: of one width.
        end: what follows the values.
    """
    for part in _parts(rows):
        width, size = len(part[0]), _size(len(part))
        values = [*chain.from_iterable(part), *[_PADDING] * (width * (size - len(part))), len(part)]
        connection.execute(_insert(begin, width, size, end), values)


def insert_values(
    connection: sqlite3.Connection, begin: str, width: int, values: Sequence[Any], sizes: Sequence[int]
) -> None:
    """Insert rows that are given by their values one after another, without padding.

    Args:
        begin: up to the names of the columns.
        width: of a row. SQLite takes 32,766 values by one statement.
        sizes: rows of one statement; they fall, and the last one is 1.
    """
    row, done = f"({', '.join('?' * width)})", 0
    for size in sizes:
        while len(values) - done >= size * width:
            sql = _repeated(f"{begin} values ", row, ", ", "", size)
            connection.execute(sql, values[done : done + size * width])
            done += size * width


def run_many(connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The rows that a statement gives for all of some values, which `(?)` in it stands for."""
    begin, end = sql.split("(?)")
    return [
        row
        for part in _parts(values)
        for row in connection.execute(_repeated(f"{begin}(", "?", ", ", f"){end}", _size(len(part))), _padded(part))
    ]


def select_each(connection: sqlite3.Connection, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The rows of a statement with one `?`, for one value after the other: each has its own order and limit.

    Args:
        sql: its `?` is compared with a column, so that none of its rows is that of a missing value.
    """
    rows: list[tuple[Any, ...]] = []
    for part in _parts(values):
        size = _size(len(part))
        one = _repeated("", f"select * from ({sql})", " union all ", "", size)
        rows += connection.execute(one, [*part, *[None] * (size - len(part))])
    return rows


def as_one_row(sql: str, names: Sequence[str]) -> str:
    """A statement whose one row has all that another one gives, as JSON: a list of the rows' values, in the order of the names.

    Args:
        names: of the columns; none is a blob.
    """
    return f"select json_group_array(json_array({', '.join(names)})) as rows from ({sql})"


def _parts(rows: Sequence[Each]) -> Iterator[Sequence[Each]]:
    return (rows[start : start + _MOST] for start in range(0, len(rows), _MOST))


def _size(rows: int) -> int:
    """The rows of the statement that takes so many."""
    return 1 << (rows - 1).bit_length()


def _padded(part: Sequence[Each]) -> list[Each]:
    return [*part, *[part[-1]] * (_size(len(part)) - len(part))]


@lru_cache(maxsize=128)
def _insert(begin: str, width: int, size: int, end: str) -> str:
    """An insert that takes as many rows as its last value tells."""
    row = f"({', '.join('?' * width)})"
    # SQLite needs a condition there to tell `on conflict` from a join.
    return f"{begin} select * from (values {', '.join([row] * size)}) where true limit ? {end}"


@lru_cache(maxsize=128)
def _repeated(begin: str, each: str, between: str, end: str, times: int) -> str:
    return f"{begin}{between.join([each] * times)}{end}"
