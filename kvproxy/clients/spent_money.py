"""The money that clients with a budget spent, by UTC day: in the data folder, or in the PostgreSQL store of several proxies."""

import asyncio
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kvproxy.errors import BudgetExceeded
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.failure_log import FailureLog
from kvproxy.index.store.database import Row
from kvproxy.index.store.sqlite.connection import connect, create_schema, make_files_private
from kvproxy.settings.access import ClientSettings
from kvproxy.settings.journal import PriceSettings

_NO_LIMIT = 1e300
_COLUMNS = "client text not null, day text not null, money float8 not null, primary key (client, day)"
_VERSION = 1
TABLE = f"create table if not exists spending ({_COLUMNS})"
_EARLIER = (
    "(select coalesce(sum(s.money), 0) from spending s where s.client = :client and s.day >= :month and s.day < :day)"
)
# The row of the day is locked, and those of earlier days change only at the end of their requests.
_RESERVE = f"""insert into spending as q (client, day, money)
    select :client, :day, :money where :per_day > 0 and :per_month > {_EARLIER}
    on conflict (client, day) do update set money = q.money + excluded.money
    where q.money < :per_day and q.money + {_EARLIER} < :per_month returning money"""
_ADD = """insert into spending as q (client, day, money) select :client, :day, :money where true
    on conflict (client, day) do update set money = q.money + excluded.money returning money"""
_SUMS = """select client, sum(case when day = :day then money else 0 end) as today, sum(money) as this_month
    from spending where day >= :month and day <= :day group by client"""
_DELETE_CLIENT = "delete from spending where client = :client returning day"
# No budget counts the days before this month.
_DELETE_OLD = "delete from spending where day < :month returning day"
Query = Callable[[str, Mapping[str, Any]], list[Row]]


def spending_file(data: Path) -> Path:
    return data / "spending.db"


@dataclass(frozen=True, slots=True)
class Spent:
    """The money that a client spent on this UTC day, and in this UTC month, in `journal.currency`."""

    today: float = 0.0
    this_month: float = 0.0


class SpendingFile:
    """The table in the data folder, which the first query opens. Thread-safe; several processes may use it."""

    def __init__(self, data: Path) -> None:
        self._path = spending_file(data)
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()

    def query(self, sql: str, values: Mapping[str, Any]) -> list[Row]:
        """Run a statement, and commit it. Raises a CacheStoreError."""
        try:
            with self._lock:
                if self._connection is None:
                    self._connection = self._open()
                with self._connection:
                    return [dict(row) for row in self._connection.execute(sql, values).fetchall()]
        except (sqlite3.Error, OSError) as error:
            raise CacheStoreError(f"cannot use {self._path}: {error}") from None

    def _open(self) -> sqlite3.Connection:
        make_files_private(self._path)
        connection = connect(self._path)
        try:
            create_schema(connection, f"the file {self._path}", _VERSION, [TABLE])
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


def read_spent(query: Query, now: float) -> dict[str, Spent]:
    """Return what each client spent on the day and in the month of `now`. Raises a CacheStoreError."""
    return {row["client"]: Spent(row["today"], row["this_month"]) for row in query(_SUMS, _period(now))}


def delete_spent(query: Query, client: str) -> None:
    """Let a client spend its whole budget again. Raises a CacheStoreError."""
    query(_DELETE_CLIENT, {"client": client})


class SpentMoney:
    """Enforces the budgets of clients.

    While the table cannot be used, a client may spend the rest of its budget by the last reading of the table, and its charges
    are added later.

    Args:
        query: runs a statement on the table; raises a CacheStoreError.
        prices: prices by model.
        clock: returns seconds since the epoch.
    """

    def __init__(
        self, query: Query, prices: Mapping[str, PriceSettings], clock: Callable[[], float] = time.time
    ) -> None:
        self.prices = prices
        self._query = query
        self._clock = clock
        self._month = ""
        self._last: dict[str, Spent] = {}
        self._owed: dict[tuple[str, str], float] = {}
        self._charges: set[asyncio.Task[None]] = set()
        self._failures = FailureLog()

    async def reserve(self, client: ClientSettings, money: float) -> float:
        """Charge the client the estimated price of a prompt. Return the time of the reservation, for `charge`.

        Raises BudgetExceeded if its charges, including the reservations of requests in flight, reach a budget.
        """
        now = self._clock()
        try:
            await asyncio.to_thread(self._reserve, client, money, now)
        except CacheStoreError as error:
            self._failures.log_failure("%s: until it works again, budgets count what this proxy knows", error)
            self._check(client, now, self._known(client.name, now))
            self._owe(client.name, now, money)
        return now

    def _reserve(self, client: ClientSettings, money: float, now: float) -> None:
        self._pay_debts()
        self._failures.log_recovery("the spent money of clients is counted in its table again")
        limits = {"per_day": client.budget_per_day, "per_month": client.budget_per_month}
        bounds = {name: _NO_LIMIT if limit is None else limit for name, limit in limits.items()}
        period = _period(now)
        if period["month"] != self._month:
            self._query(_DELETE_OLD, period)
            self._month = period["month"]
        is_reserved = self._query(_RESERVE, {"client": client.name, "money": money, **bounds, **period})
        self._last = read_spent(self._query, now)
        if not is_reserved:
            self._check(client, now, self._last.get(client.name, Spent()))
            # Another request returned its reservation meanwhile.
            self._query(_ADD, {"client": client.name, "day": period["day"], "money": money})

    def _check(self, client: ClientSettings, now: float, spent: Spent) -> None:
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

    def charge(self, client: str, money: float, time: float) -> None:
        """Charge a client money on the day of `time`; negative money is a refund. A task writes it."""
        self._owe(client, time, money)
        task = asyncio.create_task(self._pay_debts_later())
        self._charges.add(task)
        task.add_done_callback(self._charges.discard)

    async def close(self) -> None:
        """Wait until all charges are written."""
        await asyncio.gather(*self._charges)

    def _known(self, client: str, now: float) -> Spent:
        last, period = self._last.get(client, Spent()), _period(now)
        owed = [(day, money) for (name, day), money in self._owed.items() if name == client and day >= period["month"]]
        today = sum(money for day, money in owed if day == period["day"])
        return Spent(last.today + today, last.this_month + sum(money for _, money in owed))

    def _owe(self, client: str, time: float, money: float) -> None:
        key = client, _period(time)["day"]
        self._owed[key] = self._owed.get(key, 0.0) + money

    async def _pay_debts_later(self) -> None:
        try:
            await asyncio.to_thread(self._pay_debts)
        except CacheStoreError as error:
            self._failures.log_failure("%s: until it works again, budgets count what this proxy knows", error)

    def _pay_debts(self) -> None:
        for key in list(self._owed):
            money = self._owed.pop(key, 0.0)
            if not money:
                continue
            try:
                self._query(_ADD, {"client": key[0], "day": key[1], "money": money})
                self._last = read_spent(self._query, self._clock())
            except CacheStoreError:
                self._owed[key] = self._owed.get(key, 0.0) + money
                raise


def _period(now: float) -> dict[str, str]:
    day = datetime.fromtimestamp(now, UTC).date()
    return {"day": day.isoformat(), "month": day.replace(day=1).isoformat()}
