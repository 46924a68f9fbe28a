"""What runs statements of SQL inside a transaction, for every kind of database alike."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kvproxy.index.store.sealing import Row


class Transaction(Protocol):
    """Runs statements inside a transaction."""

    def __call__(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        """The rows of a statement."""

    def many(self, sql: str, values: Sequence[Mapping[str, Any]]) -> None:
        """A statement once for each of some values, in their order."""
