"""Inserts many rows with few statements.

SQLite makes the rows of a statement by itself, without Python's lock. Each statement costs a hand-over of that lock, there and
back: the thread that answers would wait for it thousands of times a second, were there a statement for each row.
"""

import sqlite3
from typing import Any


class Insert:
    """An insert into a table.

    Args:
        connection: used by one thread at a time.
        table: its name.
        columns: that get values, with commas between.
        most: rows of one statement. SQLite takes 32,766 values.
    """

    def __init__(self, connection: sqlite3.Connection, table: str, columns: str, most: int) -> None:
        self._connection = connection
        self.width = columns.count(",") + 1
        row = f"({', '.join('?' * self.width)})"
        # Half as many each time: so SQLite has every one of the few at hand, and no number of rows takes many.
        sizes = [most >> halves for halves in range(most.bit_length())]
        self._statements = {rows: f"insert into {table} ({columns}) values {', '.join([row] * rows)}" for rows in sizes}

    def write(self, values: list[Any]) -> None:
        """Insert rows, given by their values one after another. May raise sqlite3.Error."""
        done = 0
        for rows, statement in self._statements.items():
            while len(values) - done >= rows * self.width:
                self._connection.execute(statement, values[done : done + rows * self.width])
                done += rows * self.width
