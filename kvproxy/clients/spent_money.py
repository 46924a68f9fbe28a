"""Enforces the budgets of clients."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import uuid4

from kvproxy.clients.spending_tables import SpendingTables, Spent, budgets_of, period_of, read_spent
from kvproxy.errors import BudgetExceeded, TooManyRequests
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.failure_log import FailureLog
from kvproxy.settings.access import ClientSettings
from kvproxy.settings.journal import LIST_CURRENCY, PriceSettings
from kvproxy.units import format_amount

LEASE_SECONDS = 60.0
"""Time after which a reservation that its proxy does not renew no longer counts."""
RETRY_SECONDS = 5.0
"""`Retry-After` of a request that finds the rest of a budget reserved."""
_RESERVE = "insert into reservations (id, client, money, expires) values (:id, :client, :money, :expires) returning id"
_RESERVED = "select coalesce(sum(money), 0) as money from reservations where client = :client"
_RENEW = "update reservations set expires = :expires where id = :id"
_RELEASE = "delete from reservations where id = :id"
# A time in the far future is a sign of a clock that was set back. The clocks of other proxies may differ a little.
_DELETE_EXPIRED = "delete from reservations where expires < :now or expires > :latest returning id"
_log = logging.getLogger("kvproxy")
_ADD = """insert into spending as q (client, day, money) select :client, :day, :money where true
    on conflict (client, day) do update set money = q.money + excluded.money returning money"""
# No budget counts the days before this month.
_DELETE_OLD = "delete from spending where day < :month returning day"


@dataclass(frozen=True, slots=True)
class Reservation:
    """Money that is reserved for a request. `time` is in seconds since the epoch.

    Attributes:
        id: row of the table; None if the table could not be used, so that the money counts as spent.
    """

    money: float
    time: float
    id: str | None


class SpentMoney:
    """Enforces the budgets of clients.

    A request reserves the most that it may cost, and its price replaces the reservation. Proxies renew the reservations of
    their requests in flight, so those of a proxy that crashed expire.

    While the tables cannot be used, a client may spend the rest of its budget by their last reading, and its charges are added
    by `write_pending_charges`, or when the proxy stops.

    Args:
        prices: prices by model.
        clock: returns seconds since the epoch.
        currency: currency of the prices and the budgets.
    """

    def __init__(
        self,
        tables: SpendingTables,
        prices: Mapping[str, PriceSettings],
        clock: Callable[[], float] = time.time,
        currency: str = LIST_CURRENCY,
    ) -> None:
        self.prices = prices
        self._currency = currency
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

    async def reserve(self, client: ClientSettings, money: float, *, is_team: bool = False) -> Reservation:
        """Reserve the most that a request may cost; `charge` replaces the reservation by its price.

        Raises BudgetExceeded if the client has spent a budget, or TooManyRequests if requests in flight have reserved the rest.
        These errors name a client with `is_team` as a team.
        """
        now = self._clock()
        id = f"{self._proxy}-{next(self._numbers)}"
        try:
            await asyncio.to_thread(self._reserve, client, money, now, id, is_team)
        except CacheStoreError as error:
            self._log_failure(error)
            _check(client, now, self._known(client.name, now), 0.0, self._currency, is_team=is_team)
            self._owe(client.name, now, money)
            return Reservation(money, now, None)
        self._in_flight.add(id)
        return Reservation(money, now, id)

    def _reserve(self, client: ClientSettings, money: float, now: float, id: str, is_team: bool) -> None:
        self._pay_debts()
        period = period_of(now)
        with self._tables.transaction(durable=False) as run:
            if period["month"] != self._month:
                run(_DELETE_OLD, {"month": period["month"]})
            run(_DELETE_EXPIRED, {"now": now, "latest": now + 10 * LEASE_SECONDS})
            self._last = read_spent(run, now)
            reserved = run(_RESERVED, {"client": client.name})[0]["money"]
            _check(client, now, self._last.get(client.name, Spent()), reserved, self._currency, is_team=is_team)
            run(_RESERVE, {"id": id, "client": client.name, "money": money, "expires": now + LEASE_SECONDS})
        self._log_recovery()
        self._month = period["month"]

    def charge(self, client: str, money: float, reservation: Reservation) -> None:
        """Replace a reservation by the price of its request, on the day of the reservation. A task writes it."""
        if reservation.id is None:
            self._owe(client, reservation.time, money - reservation.money)
        else:
            self._in_flight.discard(reservation.id)
            self._owe(client, reservation.time, money, reservation.id)
        task = asyncio.create_task(asyncio.to_thread(self.write_pending_charges))
        self._charges.add(task)
        task.add_done_callback(self._charges.discard)

    def read(self) -> dict[str, Spent]:
        """Return what each client spent, for all proxies that share the tables. Raises a CacheStoreError."""
        return read_spent(self._tables.query, self._clock())

    async def renew_periodically(self) -> None:
        """Renew the reservations of requests in flight, and write the charges that the tables did not accept before."""
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            await asyncio.to_thread(self.write_pending_charges)
            # The table logs its failure at the next request.
            with suppress(CacheStoreError):
                await asyncio.to_thread(self._renew, list(self._in_flight))

    def _renew(self, ids: list[str]) -> None:
        if ids:
            expires = self._clock() + LEASE_SECONDS
            with self._tables.transaction(durable=False) as run:
                run.executemany(_RENEW, [{"id": id, "expires": expires} for id in ids])

    async def close(self) -> None:
        """Write all charges. If the tables cannot be used, log the money that no budget counts."""
        await asyncio.gather(*self._charges)
        await asyncio.to_thread(self.write_pending_charges)
        owed = [(client, format_amount(money)) for (client, _), money in sorted(self._owed.items()) if money]
        if unwritten := ", ".join(f"{client} {money} {self._currency}" for client, money in owed):
            _log.error(
                "the budgets do not count the money that clients spent while its table could not be used: %s", unwritten
            )

    def _known(self, client: str, now: float) -> Spent:
        last, period = self._last.get(client, Spent()), period_of(now)
        with self._owing:
            owed = [(day, money) for (name, day), money in self._owed.items() if name == client]
        today = sum(money for day, money in owed if day == period["day"])
        return Spent(last.today + today, last.this_month + sum(money for day, money in owed if day >= period["month"]))

    def _owe(self, client: str, time: float, money: float, released: str | None = None) -> None:
        key = client, period_of(time)["day"]
        with self._owing:
            self._owed[key] = self._owed.get(key, 0.0) + money
            self._released |= set() if released is None else {released}

    def write_pending_charges(self) -> None:
        """Write the charges that are not in the tables yet. Call it when the tables may work again."""
        try:
            self._pay_debts()
        except CacheStoreError as error:
            self._log_failure(error)

    def _log_failure(self, error: CacheStoreError) -> None:
        self._failures.log_failure("%s: until it works again, budgets count what this proxy knows", error)

    def _log_recovery(self) -> None:
        self._failures.log_recovery("the spent money of clients is counted in its table again")

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
            self._log_recovery()
        except BaseException:
            with self._owing:
                self._owed = {key: owed.get(key, 0.0) + self._owed.get(key, 0.0) for key in owed | self._owed}
                self._released |= released
            raise


def _check(client: ClientSettings, now: float, spent: Spent, reserved: float, currency: str, *, is_team: bool) -> None:
    owner, team = ("team", client.name) if is_team else ("client", None)
    moment = datetime.fromtimestamp(now, UTC)
    midnight = datetime(moment.year, moment.month, moment.day, tzinfo=UTC) + timedelta(days=1)
    next_month = datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1, tzinfo=UTC)
    ends = {"day": midnight, "month": next_month}
    for budget in budgets_of(client, spent):
        period, end = budget.period, ends[budget.period]
        limit = f"{format_amount(budget.limit)} {currency}"
        if budget.spent >= budget.limit:
            raise BudgetExceeded(
                f"the {owner} {client.name} has spent its budget of {limit} a {period}, until {end:%Y-%m-%d %H:%M} UTC:"
                f" wait, or ask the operator (kvproxy keys set {client.name} --budget-per-{period})",
                limit=f"budget_per_{period}",
                team=team,
                retry_after=math.ceil(end.timestamp() - now),
            )
        if budget.spent + reserved >= budget.limit:
            raise TooManyRequests(
                f"requests in flight have reserved the rest of the budget of {limit} a {period} of the {owner} {client.name}:"
                f" try again in {RETRY_SECONDS:g} s, or send requests with a lower max_tokens",
                limit=f"budget_per_{period}",
                team=team,
                retry_after=RETRY_SECONDS,
            )
