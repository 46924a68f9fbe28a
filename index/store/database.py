"""The seam between the SQL of the response store and the databases that run it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from kvproxy.index.store.health import StoreHealth

Row = dict[str, Any]


class Transaction(Protocol):
    """Runs statements inside a transaction. Statements name their values `:name`."""

    def __call__(self, sql: str, values: Mapping[str, Any] = ...) -> list[Row]:
        """Run a statement and return its rows."""

    def executemany(self, sql: str, values: Sequence[Mapping[str, Any]]) -> None:
        """Run a statement once for each mapping."""


class Database(Protocol):
    """An SQLite file or a PostgreSQL database with the store's schema. Thread-safe. Methods may raise a CacheStoreError."""

    name: str
    """Path or URL, without the password."""
    remote: bool
    """Whether calls cross a network."""
    health: StoreHealth

    def query(self, sql: str, values: Mapping[str, Any] = ...) -> list[Row]:
        """Run a statement that only reads."""

    def transaction(self, *, durable: bool = True) -> AbstractContextManager[Transaction]:
        """The only writing transaction at a time, committed at the end of the block.

        Args:
            durable: False skips the flush to disk. The commit survives a killed process, but perhaps not a power failure.
        """

    def is_in(self, column: str, name: str) -> str:
        """SQL condition: a column is in the list of the value `:name`, which `array` makes."""

    def array(self, values: Sequence[str]) -> Any:
        """A list as a value for `is_in`."""

    def text(self, text: str) -> str:
        """A text without characters that the database cannot store."""

    def vector(self, vector: np.ndarray) -> Any:
        """A vector as a value of a statement."""

    def disk_bytes(self) -> int:
        """Bytes on disk."""

    def check(self) -> int:
        """Read all data and return the number of responses.

        Raises:
            StoreDamaged: the data is inconsistent.
        """

    def close(self) -> None:
        """Close all connections."""
