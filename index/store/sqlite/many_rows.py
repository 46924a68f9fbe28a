"""Inserts many rows of named values by few statements."""

import re
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from kvproxy.index.store.sqlite.many import insert_many

_INSERT = re.compile(r"(insert into \w+ \([^()]*\)) values \((:\w+(?:, :\w+)*)\)")


def execute_many(connection: sqlite3.Connection, sql: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Run a statement once for each of some rows, in their order.

    Args:
        sql: with `:name` for values. A plain insert takes many rows at a time.
    """
    plain = _INSERT.fullmatch(sql)
    if plain is None:
        connection.executemany(sql, rows)
        return
    names = [name.strip()[1:] for name in plain[2].split(",")]
    insert_many(connection, plain[1], [[row[name] for name in names] for row in rows])
