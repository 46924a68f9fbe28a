"""The money that clients with a budget spent and reserved: in the data folder, or in the PostgreSQL store of several proxies."""

import asyncio
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol
from uuid import uuid4

from kvproxy.errors import BudgetExceeded, TooManyRequests
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.failure_log import FailureLog
from kvproxy.index.sqlite_files import connect, create_schema, make_files_private
from kvproxy.index.store.database import Row, Transaction
from kvproxy.settings.access import ClientSettings
from kvproxy.settings.journal import PriceSettings

LEASE_SECONDS = 60.0
"""Time after which a reservation that its proxy does not renew no longer counts."""
RETRY_SECONDS = 5.0
"""`Retry-After` of a request that finds the rest of a budget reserved."""
_VERSION = 1
TABLES = (
    "create table if not exists spending"
    " (client text not null, day text not null, money float8 not null, primary key (client, day))",
    "create table if not exists reservations"
    " (id text primary key, client text not null, money float8 not null, expires float8 not null)",
)
_RESERVE = "insert into reservations (id, client, money, expires) values (:id, :client, :money, :expires) returning id"
_RESERVED = "select coalesce(sum(money), 0) as money from reservations where client = :client"
_RENEW = "update reservations set expires = :expires where id = :id"
_RELEASE = "delete from reservations where id = :id"
# A time in the far future is a sign of a clock that was set back. The clocks of other proxies may differ a little.
_DELETE_EXPIRED = "delete from reservations where expires < :now or expires > :latest returning id"
_ADD = """insert into spending as q (client, day, money) select :client, :day, :money where true
    on conflict (client, day) do update set money = q.money + excluded.money returning money"""
_SUMS = """select client, sum(case when day = :day then money else 0 end) as today, sum(money) as this_month
    from spending where day >= :month and day <= :day group by client"""
_DELETE_CLIENT = "delete from spending where client = :client returning day"
# No budget counts the days before this month.
_DELETE_OLD = "delete from spending where day < :month returning day"
Query = Callable[[str, Mapping[str, Any]], list[Row]]


class SpendingTables(Protocol):
    """The tables of spent and reserved money. Methods may raise a CacheStoreError."""

    def query(self, sql: str, values: Mapping[str, Any] = ...) -> list[Row]: ...

    def transaction(self, *, durable: bool = True) -> AbstractContextManager[Transaction]:
        """Open a transaction, which is committed after the `with` block. One transaction is open at a time."""


def spending_file(data: Path) -> Path:
    return data / "spending.db"


@dataclass(frozen=True, slots=True)
class Spent:
    """The money that a client spent on this UTC day, and in this UTC month, in `journal.currency`."""

    today: float = 0.0
    this_month: float = 0.0


@dataclass(frozen=True, slots=True)
class Reservation:
    """Money that is reserved for a request. `time` is in seconds since the epoch.

    Attributes:
        id: row of the table; None if the table could not be used, so that the money counts as spent.
    """

    money: float
    time: float
    id: str | None


class SpendingFile:
    """The tables in the data folder, which the first query opens. Thread-safe; several processes may use them."""

    def __init__(self, data: Path) -> None:
        self._path = spending_file(data)
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def query(self, sql: str, values: Mapping[str, Any] = MappingProxyType({})) -> list[Row]:
        """Run a statement, and commit it. Raises a CacheStoreError."""
        with self.transaction() as run:
            return run(sql, values)

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[Transaction]:
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

    def __call__(self, sql: str, values: Mapping[str, Any] = MappingProxyType({})) -> list[Row]:
        return [dict(row) for row in self._connection.execute(sql, dict(values)).fetchall()]

    def executemany(self, sql: str, values: Sequence[Mapping[str, Any]]) -> None:
        self._connection.executemany(sql, values)


def read_spent(query: Query, now: float) -> dict[str, Spent]:
    """Return what each client spent on the day and in the month of `now`. Raises a CacheStoreError."""
    return {row["client"]: Spent(row["today"], row["this_month"]) for row in query(_SUMS, _period(now))}


def delete_spent(query: Query, client: str) -> None:
    """Let a client spend its whole budget again. Raises a CacheStoreError."""
    query(_DELETE_CLIENT, {"client": client})


class SpentMoney:
    """Enforces the budgets of clients.

    A request reserves the most that it may cost, and its price replaces the reservation. Proxies renew the reservations of
    their requests in flight, so those of a proxy that crashed expire.

    While the tables cannot be used, a client may spend the rest of its budget by their last reading, and its charges are added
    later.

    Args:
        prices: prices by model.
        clock: returns seconds since the epoch.
    """

    def __init__(
        self, tables: SpendingTables, prices: Mapping[str, PriceSettings], clock: Callable[[], float] = time.time
    ) -> None:
        self.prices = prices
        self._tables = tables
        self._clock = clock
        self._month = ""
        self._last: dict[str, Spent] = {}
        self._owed: dict[tuple[str, str], float] = {}
        self._released: set[str] = set()
        self._owing = threading.Lock()
        self._in_flight: set[str] = set()
        self._proxy = uuid4().hex
        self._numbers = count()
        self._charges: set[asyncio.Task[None]] = set()
        self._failures = FailureLog()

    async def reserve(self, client: ClientSettings, money: float) -> Reservation:
        """Reserve the most that a request may cost; `charge` replaces the reservation by its price.

        Raises BudgetExceeded if the client has spent a budget, or TooManyRequests if requests in flight have reserved the rest.
        """
        now = self._clock()
        id = f"{self._proxy}-{next(self._numbers)}"
        try:
            await asyncio.to_thread(self._reserve, client, money, now, id)
        except CacheStoreError as error:
            self._failures.log_failure("%s: until it works again, budgets count what this proxy knows", error)
            _check(client, now, self._known(client.name, now), 0.0)
            self._owe(client.name, now, money)
            return Reservation(money, now, None)
        self._in_flight.add(id)
        return Reservation(money, now, id)

    def _reserve(self, client: ClientSettings, money: float, now: float, id: str) -> None:
        self._pay_debts()
        self._failures.log_recovery("the spent money of clients is counted in its table again")
        period = _period(now)
        with self._tables.transaction(durable=False) as run:
            if period["month"] != self._month:
                run(_DELETE_OLD, {"month": period["month"]})
            run(_DELETE_EXPIRED, {"now": now, "latest": now + 10 * LEASE_SECONDS})
            self._last = read_spent(run, now)
            reserved = run(_RESERVED, {"client": client.name})[0]["money"]
            _check(client, now, self._last.get(client.name, Spent()), reserved)
            run(_RESERVE, {"id": id, "client": client.name, "money": money, "expires": now + LEASE_SECONDS})
        self._month = period["month"]

    def charge(self, client: str, money: float, reservation: Reservation) -> None:
        """Replace a reservation by the price of its request, on the day of the reservation. A task writes it."""
        if reservation.id is None:
            self._owe(client, reservation.time, money - reservation.money)
        else:
            self._in_flight.discard(reservation.id)
            self._owe(client, reservation.time, money, reservation.id)
        task = asyncio.create_task(self._pay_debts_later())
        self._charges.add(task)
        task.add_done_callback(self._charges.discard)

    async def renew_periodically(self) -> None:
        """Renew the reservations of requests in flight."""
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            # The table logs its failure at the next request.
            with suppress(CacheStoreError):
                await asyncio.to_thread(self._renew, list(self._in_flight))

    def _renew(self, ids: list[str]) -> None:
        if ids:
            expires = self._clock() + LEASE_SECONDS
            with self._tables.transaction(durable=False) as run:
                run.executemany(_RENEW, [{"id": id, "expires": expires} for id in ids])

    async def close(self) -> None:
        """Wait until all charges are written."""
        await asyncio.gather(*self._charges)

    def _known(self, client: str, now: float) -> Spent:
        last, period = self._last.get(client, Spent()), _period(now)
        with self._owing:
            owed = [(day, money) for (name, day), money in self._owed.items() if name == client]
        today = sum(money for day, money in owed if day == period["day"])
        return Spent(last.today + today, last.this_month + sum(money for day, money in owed if day >= period["month"]))

    def _owe(self, client: str, time: float, money: float, released: str | None = None) -> None:
        key = client, _period(time)["day"]
        with self._owing:
            self._owed[key] = self._owed.get(key, 0.0) + money
            self._released |= set() if released is None else {released}

    async def _pay_debts_later(self) -> None:
        try:
            await asyncio.to_thread(self._pay_debts)
        except CacheStoreError as error:
            self._failures.log_failure("%s: until it works again, budgets count what this proxy knows", error)

    def _pay_debts(self) -> None:
        with self._owing:
            owed, released = self._owed, self._released
            self._owed, self._released = {}, set()
        if not owed and not released:
            return
        try:
            with self._tables.transaction() as run:
                for (client, day), money in sorted(owed.items()):
                    run(_ADD, {"client": client, "day": day, "money": money})
                run.executemany(_RELEASE, [{"id": id} for id in sorted(released)])
                self._last = read_spent(run, self._clock())
        except BaseException:
            with self._owing:
                self._owed = {key: owed.get(key, 0.0) + self._owed.get(key, 0.0) for key in owed | self._owed}
                self._released |= released
            raise


def _check(client: ClientSettings, now: float, spent: Spent, reserved: float) -> None:
    moment = datetime.fromtimestamp(now, UTC)
    midnight = datetime(moment.year, moment.month, moment.day, tzinfo=UTC) + timedelta(days=1)
    next_month = datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1, tzinfo=UTC)
    for period, budget, used, end in (
        ("month", client.budget_per_month, spent.this_month, next_month),
        ("day", client.budget_per_day, spent.today, midnight),
    ):
        if budget is not None and used >= budget:
            raise BudgetExceeded(
                f"the client {client.name} has spent its budget of {budget:,g} a {period}, until {end:%Y-%m-%d %H:%M} UTC:"
                f" wait, or ask the operator (kvproxy keys set {client.name} --budget-per-{period})",
                limit=f"budget_per_{period}",
                retry_after=math.ceil(end.timestamp() - now),
            )
        if budget is not None and used + reserved >= budget:
            raise TooManyRequests(
                f"requests in flight have reserved the rest of the budget of {budget:,g} a {period} of the client {client.name}:"
                f" try again in {RETRY_SECONDS:g} s, or send requests with a lower max_tokens",
                limit=f"budget_per_{period}",
                retry_after=RETRY_SECONDS,
            )


def _period(now: float) -> dict[str, str]:
    day = datetime.fromtimestamp(now, UTC).date()
    return {"day": day.isoformat(), "month": day.replace(day=1).isoformat()}
