"""Enforces the budgets of clients."""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import uuid4

from kvproxy.clients.spending_tables import (
    NOTHING_SPENT,
    SpendingTables,
    Spent,
    SpentAndReserved,
    add_spent,
    budgets_of,
    period_of,
    read_spent,
)
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
# A reservation may be missing: the table could not be used when it was made, or another proxy has deleted it.
_RENEW = """insert into reservations (id, client, money, expires) values (:id, :client, :money, :expires)
    on conflict (id) do update set expires = excluded.expires"""
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
    """Money that is reserved for a request. `time` is in seconds since the epoch, `id` is the row of the table."""

    id: str
    client: str
    money: float
    time: float


class SpentMoney:
    """Enforces the budgets of clients.

    A request reserves the most that it may cost, and its price replaces the reservation. Proxies renew the reservations of
    their requests in flight, so those of a proxy that crashed expire.

    While the tables cannot be used, a client may spend the rest of its budget by their last reading. This proxy keeps its own
    charges and reservations, and writes them when the tables work again; the charges also when it stops.

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
        self._last_period = {"day": "", "month": ""}
        self._owed: dict[tuple[str, str], float] = {}
        self._being_written: dict[tuple[str, str], float] = {}
        self._released: set[str] = set()
        self._owing = threading.Lock()
        self._writing = threading.Lock()
        self._in_flight: dict[str, Reservation] = {}
        self._unwritten: set[str] = set()
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
        reservation = Reservation(f"{self._proxy}-{next(self._numbers)}", client.name, money, now)
        unwritten = self._reserved_here(client.name, self._unwritten)
        try:
            await asyncio.to_thread(self._reserve, client, reservation, unwritten, is_team)
        except CacheStoreError as error:
            self._log_failure(error)
            spent, reserved = self._known(client.name, now), self._reserved_here(client.name, self._in_flight)
            _check(client, now, spent, reserved, self._currency, is_team=is_team)
            self._unwritten.add(reservation.id)
        self._in_flight[reservation.id] = reservation
        return reservation

    def _reserve(self, client: ClientSettings, reservation: Reservation, unwritten: float, is_team: bool) -> None:
        self._pay_debts()
        now = reservation.time
        period = period_of(now)
        with self._tables.transaction(durable=False) as run:
            if period["month"] != self._month:
                run(_DELETE_OLD, {"month": period["month"]})
            run(_DELETE_EXPIRED, {"now": now, "latest": now + 10 * LEASE_SECONDS})
            spent = read_spent(run, now)
            reserved = run(_RESERVED, {"client": client.name})[0]["money"] + unwritten
            _check(client, now, spent.get(client.name, NOTHING_SPENT), reserved, self._currency, is_team=is_team)
            run(_RESERVE, _row(reservation, now))
        self._log_recovery()
        self._month = period["month"]
        self._remember(spent, period)

    def _reserved_here(self, client: str, ids: Iterable[str]) -> float:
        """Return the money that requests in flight of this proxy with these ids reserve."""
        reservations = (self._in_flight[id] for id in ids)
        return sum(reservation.money for reservation in reservations if reservation.client == client)

    def _remember(self, spent: dict[str, Spent], period: dict[str, str]) -> None:
        """Keep a reading of the tables, which counts while they cannot be used."""
        with self._owing:
            self._last, self._last_period = spent, period

    def charge(self, client: str, money: float, reservation: Reservation) -> None:
        """Replace a reservation by the price of its request, on the day of the reservation. A task writes it."""
        del self._in_flight[reservation.id]
        is_written = reservation.id not in self._unwritten
        self._unwritten.discard(reservation.id)
        self._owe(client, reservation.time, money, reservation.id if is_written else None)
        task = asyncio.create_task(asyncio.to_thread(self.write_pending_charges))
        self._charges.add(task)
        task.add_done_callback(self._charges.discard)

    def read(self) -> dict[str, Spent]:
        """Return what each client spent, for all proxies that share the tables, with the charges that they lack of this one.

        Raises a CacheStoreError.
        """
        return add_spent(read_spent(self._tables.query, self._clock()), self.unwritten()[0])

    def unwritten(self) -> SpentAndReserved:
        """Return the charges and the reservations of this proxy that the tables did not accept yet. Thread-safe."""
        period = period_of(self._clock())
        with self._owing:
            owed = [*self._owed.items(), *self._being_written.items()]
        spent: dict[str, Spent] = {}
        for (client, day), money in owed:
            if day >= period["month"]:
                today = money if day == period["day"] else 0.0
                spent = add_spent(spent, {client: Spent(today, money)})
        reserved: dict[str, float] = {}
        for reservation in [*self._in_flight.values()]:
            if reservation.id in self._unwritten:
                reserved[reservation.client] = reserved.get(reservation.client, 0.0) + reservation.money
        return spent, reserved

    def known(self, clients: Iterable[str]) -> SpentAndReserved:
        """Return the money of clients by the last reading of the tables, and the charges of this proxy since. Thread-safe."""
        now, reserved = self._clock(), dict[str, float]()
        for reservation in [*self._in_flight.values()]:
            reserved[reservation.client] = reserved.get(reservation.client, 0.0) + reservation.money
        return {client: self._known(client, now) for client in clients}, reserved

    async def renew_periodically(self) -> None:
        """Renew the reservations of requests in flight, and write the charges that the tables did not accept before."""
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            await asyncio.to_thread(self.write_pending_charges)
            # The table logs its failure at the next request.
            with suppress(CacheStoreError):
                await self._renew([*self._in_flight.values()])

    async def _renew(self, reservations: list[Reservation]) -> None:
        if not reservations:
            return
        await asyncio.to_thread(self._write_reservations, reservations)
        written = {reservation.id for reservation in reservations}
        self._unwritten -= written
        with self._owing:
            # These requests ended meanwhile.
            self._released |= written - self._in_flight.keys()

    def _write_reservations(self, reservations: list[Reservation]) -> None:
        now = self._clock()
        with self._tables.transaction(durable=False) as run:
            run.executemany(_RENEW, [_row(reservation, now) for reservation in reservations])

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
        period = period_of(now)
        with self._owing:
            last, read = self._last.get(client, NOTHING_SPENT), self._last_period
        before = Spent(
            last.today if read["day"] == period["day"] else 0.0,
            last.this_month if read["month"] == period["month"] else 0.0,
        )
        return before + self.unwritten()[0].get(client, NOTHING_SPENT)

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
        with self._writing:
            with self._owing:
                owed, released = self._owed, self._released
                self._owed, self._being_written, self._released = {}, owed, set()
            if not owed and not released:
                return
            try:
                spent, period = self._write_charges(owed, released)
            except BaseException:
                with self._owing:
                    self._owed = {key: owed.get(key, 0.0) + self._owed.get(key, 0.0) for key in owed | self._owed}
                    self._being_written = {}
                    self._released |= released
                raise
            with self._owing:
                self._being_written, self._last, self._last_period = {}, spent, period
            self._log_recovery()

    def _write_charges(
        self, owed: dict[tuple[str, str], float], released: set[str]
    ) -> tuple[dict[str, Spent], dict[str, str]]:
        """Write charges, and return what each client has spent, and in which day and month."""
        now = self._clock()
        with self._tables.transaction() as run:
            for (client, day), money in sorted(owed.items()):
                run(_ADD, {"client": client, "day": day, "money": money})
            run.executemany(_RELEASE, [{"id": id} for id in sorted(released)])
            spent = read_spent(run, now)
        return spent, period_of(now)


def _row(reservation: Reservation, now: float) -> dict[str, str | float]:
    return {
        "id": reservation.id,
        "client": reservation.client,
        "money": reservation.money,
        "expires": now + LEASE_SECONDS,
    }


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
