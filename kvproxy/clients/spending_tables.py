"""The tables of spent and reserved money: in the data folder, or in the PostgreSQL store of several proxies."""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.sqlite_files import check_file, connect, create_schema, make_files_private

if TYPE_CHECKING:
    from kvproxy.index.store.database import Row, Transaction
    from kvproxy.settings.access import ClientSettings

_VERSION = 1
TABLES = (
    "create table if not exists spending"
    " (client text not null, day text not null, money float8 not null, primary key (client, day))",
    "create table if not exists reservations"
    " (id text primary key, client text not null, money float8 not null, expires float8 not null)",
)
_SUMS = """select client, sum(case when day = :day then money else 0 end) as today, sum(money) as this_month
    from spending where day >= :month and day <= :day group by client"""
_RESERVATIONS = "select client, sum(money) as money from reservations where expires >= :now group by client"
_DELETE_CLIENT = "delete from spending where client = :client returning day"
Query: TypeAlias = "Callable[[str, Mapping[str, Any]], list[Row]]"


class SpendingTables(Protocol):
    """The tables of spent and reserved money. Methods may raise a CacheStoreError."""

    def query(self, sql: str, values: Mapping[str, Any] = ...) -> "list[Row]": ...

    def transaction(self, *, durable: bool = True) -> "AbstractContextManager[Transaction]":
        """Open a transaction, which is committed after the `with` block. One transaction is open at a time."""


def spending_file(data: Path) -> Path:
    return data / "spending.db"


@dataclass(frozen=True, slots=True)
class Spent:
    """The money that a client spent on this UTC day, and in this UTC month, in `journal.currency`."""

    today: float = 0.0
    this_month: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(self.today + other.today, self.this_month + other.this_month)


NOTHING_SPENT = Spent()
SpentAndReserved: TypeAlias = tuple[dict[str, Spent], dict[str, float]]
"""The money that each client spent, and that its requests in flight reserve."""


def add_spent(spent: Mapping[str, Spent], more: Mapping[str, Spent]) -> dict[str, Spent]:
    """Return the sums by client."""
    return {client: spent.get(client, NOTHING_SPENT) + more.get(client, NOTHING_SPENT) for client in {**spent, **more}}


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget of a client for this UTC day or month, and the money that counts for it, in `journal.currency`."""

    period: Literal["day", "month"]
    limit: float
    spent: float

    @property
    def remaining(self) -> float:
        return max(0.0, self.limit - self.spent)


def budgets_of(client: "ClientSettings", spent: Spent) -> list[Budget]:
    """Return the budgets of a client, with the spent money that counts for each."""
    month, day = client.budget_per_month, client.budget_per_day
    of_month = [] if month is None else [Budget("month", month, max(0.0, spent.this_month))]
    return of_month if day is None else [*of_month, Budget("day", day, max(0.0, spent.today))]


class SpendingFile:
    """The tables in the data folder, which the first query opens. Thread-safe; several processes may use them."""

    def __init__(self, data: Path) -> None:
        self._path = spending_file(data)
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def query(self, sql: str, values: Mapping[str, Any] = MappingProxyType({})) -> "list[Row]":
        """Run a statement, and commit it. Raises a CacheStoreError."""
        with self.transaction() as run:
            return run(sql, values)

    @contextmanager
    def transaction(self, *, durable: bool = True) -> "Iterator[Transaction]":
        """See `SpendingTables`. Only a power failure may lose a commit. Raises a CacheStoreError."""
        try:
            with self._lock:
                if self._connection is None:
                    self._connection = self._open()
                with self._connection:
                    self._connection.execute("begin immediate")
                    yield _FileTransaction(self._connection)
        except (sqlite3.Error, OSError) as error:
            raise CacheStoreError(f"cannot use {self._path}: {error}") from None

    def _open(self) -> sqlite3.Connection:
        check_file(self._path, f"the file {self._path}", _VERSION)
        make_files_private(self._path)
        connection = connect(self._path)
        try:
            create_schema(connection, f"the file {self._path}", _VERSION, TABLES)
            for statement in TABLES:
                connection.execute(statement)
            # Only a power failure may lose a commit.
            connection.execute("pragma synchronous=normal")
            connection.row_factory = sqlite3.Row
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None


class _FileTransaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __call__(self, sql: str, values: Mapping[str, Any] = MappingProxyType({})) -> "list[Row]":
        return [dict(row) for row in self._connection.execute(sql, dict(values)).fetchall()]

    def executemany(self, sql: str, values: Sequence[Mapping[str, Any]]) -> None:
        self._connection.executemany(sql, values)


def read_spent(query: Query, now: float) -> dict[str, Spent]:
    """Return what each client spent on the day and in the month of `now`. Raises a CacheStoreError."""
    return {row["client"]: Spent(row["today"], row["this_month"]) for row in query(_SUMS, period_of(now))}


def read_reserved(query: Query, now: float) -> dict[str, float]:
    """Return the money that the requests in flight of each client reserve. Raises a CacheStoreError."""
    return {row["client"]: row["money"] for row in query(_RESERVATIONS, {"now": now})}


def delete_spent(query: Query, client: str) -> None:
    """Let a client spend its whole budget again. Raises a CacheStoreError."""
    query(_DELETE_CLIENT, {"client": client})


def period_of(now: float) -> dict[str, str]:
    """Return the UTC day of a time in seconds since the epoch, and the first day of its month, as dates in ISO 8601."""
    day = datetime.fromtimestamp(now, UTC).date()
    return {"day": day.isoformat(), "month": day.replace(day=1).isoformat()}
