"""The interface to a store's database."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from kvproxy.index.errors import CacheStoreError, InvalidValue, StoreUnreachable
from kvproxy.index.failure_log import FailureLog

if TYPE_CHECKING:
    import numpy as np

Operation = Literal["read", "write"]
Row = dict[str, Any]


class Transaction(Protocol):
    """Runs SQL statements with named parameters, such as `:key`."""

    def __call__(self, sql: str, values: Mapping[str, Any] = ...) -> list[Row]: ...

    def executemany(self, sql: str, values: Sequence[Mapping[str, Any]]) -> None: ...


class WriteTransaction(Transaction, Protocol):
    demand: int
    """Largest `write_demand` of the statements so far."""


def list_parameter(column: str) -> str:
    """Return the name of the parameter of `Database.in_list`."""
    return f"{column.rpartition('.')[2]}_list"


_VERBS = ("delete", "update", "insert")


def write_demand(sql: str) -> int:
    """Return the demand that a statement makes on the disk, from 0 for reads to 4 for a stored response.

    On a full disk, transactions that delete rows or change nothing may succeed, while responses cannot be stored.
    """
    verb = sql[:6]
    return _VERBS.index(verb) + 1 + sql.startswith("insert into responses ") if verb in _VERBS else 0


class StoreHealth:
    """The failures of a store.

    After a failed write, the store counts as failing until a write of at least the same `write_demand` succeeds.

    Attributes:
        is_logged: whether failures are logged; commands print the raised error instead.
    """

    def __init__(self, name: str) -> None:
        self.is_logged = True
        self._name = name
        self._failed_demand = 0
        self._failures: dict[Operation, str] = {}
        self._is_unreachable = False
        self._logs: dict[Operation, FailureLog] = {"read": FailureLog(), "write": FailureLog()}

    @property
    def failure(self) -> str | None:
        return next(iter(self._failures.values()), None)

    def failed(self, operation: Operation, error: CacheStoreError, demand: int = 0) -> None:
        if isinstance(error, InvalidValue):
            return
        effect = "no response is stored" if operation == "write" else "no stored response is found"
        if self.is_logged:
            self._logs[operation].log_failure("%s; until it works again, %s", error, effect)
        self._failures[operation] = str(error)
        self._is_unreachable = isinstance(error, StoreUnreachable)
        if operation == "write":
            self._failed_demand = max(self._failed_demand, demand)

    def worked(self, operation: Operation, demand: int = 0) -> None:
        if operation in self._failures and (operation == "read" or demand >= self._failed_demand):
            self._recover(operation)

    def _recover(self, operation: Operation) -> None:
        if self._failures.pop(operation, None) is not None:
            if operation == "write":
                self._failed_demand = 0
            done = "written" if operation == "write" else "read"
            self._logs[operation].log_recovery("the store %s can be %s again", self._name, done)

    def is_reachable(self) -> None:
        """Report that a database works which was unreachable for reads and writes."""
        if self._is_unreachable:
            for operation in list(self._failures):
                self._recover(operation)

    @contextmanager
    def watch(self, operation: Operation, transaction: WriteTransaction | None = None) -> Iterator[None]:
        try:
            yield
        except CacheStoreError as error:
            self.failed(operation, error, 0 if transaction is None else transaction.demand)
            raise
        self.worked(operation, 0 if transaction is None else transaction.demand)


class Database(Protocol):
    """A database with the store's schema. Thread-safe. Methods may raise a CacheStoreError."""

    name: str  # Path, or URL without the password.
    remote: bool  # Calls cross a network.
    health: StoreHealth

    def query(self, sql: str, values: Mapping[str, Any] = ...) -> list[Row]: ...

    def transaction(self, *, durable: bool = True) -> AbstractContextManager[Transaction]:
        """Open a transaction, which is committed after the `with` block. Only one can be open at a time.

        A power failure may lose a transaction that is not `durable`.
        """

    def expect_answers(self, max_silence: float) -> None:
        """Count a server as unreachable if it answers no statement for `max_silence` seconds, and a statement waits.

        Call this only if statements of a few milliseconds are sent more often.
        """

    def in_list(self, column: str, values: Sequence[str | int]) -> tuple[str, Row]:
        """Return the SQL condition that a column has one of the values, and its parameters."""

    def storable_row(self, row: Row) -> Row:
        """Return a row whose texts the database can store."""

    def as_vector_parameter(self, vector: "np.ndarray") -> Any: ...

    def read_vector(self, value: Any) -> "np.ndarray":
        """Return a vector, `[dim]` float32, from the value of a column."""

    def disk_bytes(self) -> int: ...

    def failure(self) -> str | None:
        """Return the error of the last write or the last read; None if both succeeded."""

    def vacuum(self) -> None:
        """Overwrite the content of deleted and changed rows, if the database does not do so itself."""

    def count_intact_responses(self) -> int:
        """Check the whole database, and return the number of responses. Raises StoreDamaged."""

    def close(self) -> None: ...
