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
        """Run a statement without a result in the open transaction; it may be delayed until the next `rows` or the commit."""

    def executemany(self, sql: str, rows: Sequence[Sequence[object]]) -> None: ...

    def insert_records(self, rows: Sequence[Sequence[object]]) -> None:
        """Insert rows with values for the fields in `stored`."""

    def transaction(self) -> AbstractContextManager[int]:
        """Open a transaction that excludes other writers.

        Its value changes when another connection may have deleted prompts.
        """

    def reserve_numbers(self, times: Sequence[float]) -> int:
        """Reserve consecutive numbers for records that arrived at these times, and return the first number."""

    def delete_oldest(self, before: float, max_rows: int) -> int:
        """Delete a batch of records before a time or beyond `max_rows`, with their prompts; return the number of records."""

    def entry_value(self, id: str) -> object:
        """Return the value for an entry id in a column of such ids."""

    def integer(self, expression: str) -> str:
        """Return an SQL expression for a positive number without its fraction."""

    def unnested_tags(self) -> str:
        """Return the SQL after `from` that has a row for each tag of each request; `value` is the tag."""

    def close(self) -> None: ...
