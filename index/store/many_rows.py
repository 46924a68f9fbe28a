"""Inserts many rows by few statements.

SQLite makes the rows of one statement by itself. Between two statements Python's lock is handed over and back, and a thread that
stores waits for it up to five milliseconds each time, while another one answers requests.
"""

import re
import sqlite3
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

_SIZES = (64, 16, 4, 1)
"""Rows in one statement: few sizes, so that SQLite has each at hand."""
_INSERT = re.compile(r"(insert into \w+ \([^()]*\) values) \((:\w+(?:, :\w+)*)\)")


def execute_many(connection: sqlite3.Connection, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Run a statement once for each of some rows, in their order.

    Args:
        sql: with `:name` for values. A plain insert takes many rows at a time.
    """
    plain = _INSERT.fullmatch(sql)
    if plain is None:
        connection.executemany(sql, rows)
        return
    names, done = [name.strip()[1:] for name in plain[2].split(",")], 0
    for size in _SIZES:
        while len(rows) - done >= size:
            part = rows[done : done + size]
            connection.execute(_of(plain[1], len(names), size), [row[name] for row in part for name in names])
            done += size


@lru_cache(maxsize=64)
def _of(begin: str, values: int, rows: int) -> str:
    row = f"({', '.join('?' * values)})"
    return f"{begin} {', '.join([row] * rows)}"
