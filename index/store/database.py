"""The seam between the SQL of the response store and the databases that run it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, Protocol

import numpy as np

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.failure_log import FailureLog

Operation = Literal["read", "write"]


Row = dict[str, Any]


class Transaction(Protocol):
    """Runs statements inside a transaction. Statements name their values `:name`."""

    def __call__(self, sql: str, values: Mapping[str, Any] = ...) -> list[Row]:
        """Run a statement and return its rows."""

    def executemany(self, sql: str, values: Sequence[Mapping[str, Any]]) -> None:
        """Run a statement once for each mapping."""


class StoreHealth:
    """The current failures of a store.

    Args:
        name: of the store, without secrets.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._failures: dict[Operation, str] = {}
        self._logs: dict[Operation, FailureLog] = {"read": FailureLog(), "write": FailureLog()}

    @property
    def failure(self) -> str | None:
        """Why the last write or the last read failed; None if both worked."""
        return next(iter(self._failures.values()), None)

    @contextmanager
    def watch(self, operation: Operation) -> Iterator[None]:
        """Record whether the block raises a CacheStoreError, and raise it again."""
        try:
            yield
        except CacheStoreError as error:
            effect = "no response is stored" if operation == "write" else "no stored response is found"
            self._logs[operation].failed("%s; until it works again, %s", error, effect)
            self._failures[operation] = str(error)
            raise
        self._failures.pop(operation, None)
        done = "written" if operation == "write" else "read"
        self._logs[operation].succeeded("the store %s can be %s again", self._name, done)


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
