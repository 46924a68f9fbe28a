"""The interface to a journal's database, and its errors."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class JournalFailed(Exception):
    """The database cannot be read or written."""


class InvalidQuery(JournalFailed):
    """The database rejected a statement or its values."""


class JournalDatabase(Protocol):
    """A connection to a journal's database. SQL has a `?` for each value. Methods may raise JournalFailed.

    Attributes:
        name: path, or URL without the password.
        columns: fields of `Record` that the view `requests` has.
        stored: fields of `Record` that the table `records` has.
    """

    name: str
    columns: Sequence[str]
    stored: Sequence[str]

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]: ...

    def execute(self, sql: str, values: Sequence[object]) -> None:
        """Run a statement without a result in the open transaction; it may be delayed until the next query or the commit."""

    def executemany(self, sql: str, rows: Sequence[Sequence[object]]) -> None: ...

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Insert rows into a table, with a value for each of the columns."""

    def transaction(self) -> AbstractContextManager[int]:
        """Open a transaction, which blocks other writers. Yield a number; after it changed, cached prompt numbers are invalid."""

    def reserve_numbers(self, times: Sequence[float]) -> int:
        """Reserve consecutive numbers for records with these arrival times (seconds since the epoch); return the first."""

    def delete_oldest(self, before: float, max_rows: int) -> int:
        """Delete a batch of records older than `before` or beyond `max_rows`, and return their number; delete unused prompts."""

    def delete_unused_names(self) -> None:
        """Delete the rows of `names` to which nothing refers."""

    def stored_id(self, id: str) -> object:
        """Return the value that stores a response's id in this database."""

    def integer_part_sql(self, expression: str) -> str: ...

    def utc_day_sql(self) -> str:
        """Return an expression for the UTC day of a request, such as 2026-11-21."""

    def tag_rows_sql(self) -> str:
        """Return a `from` clause: the view `requests` with a row for each tag of a request, in the column `value`."""

    def close(self) -> None: ...
