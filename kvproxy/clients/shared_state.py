"""State that proxies share in PostgreSQL: quotas, clients, drained upstreams, changes by operators, and leases.

A lease on a cache key lets one proxy compute the response for all proxies. The tables are in the store's schema.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

from kvproxy.clients.spending_tables import TABLES as SPENDING_TABLES
from kvproxy.clients.spending_tables import Query, SpendingTables
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.failure_log import FailureLog
from kvproxy.index.store.database import Database, Row

HEARTBEAT_SECONDS = 0.5
_MAX_SILENCE = 1.0  # Seconds without an answer after which the database counts as unreachable.
QUOTA_SECONDS = 2.0
"""Timeout of `take_units`. After it, a proxy grants its own share of the quota."""
LEASE_SECONDS = 5.0
"""Time without a heartbeat after which a proxy loses its leases and its share of quotas."""
MAX_DEBT_MINUTES = 60
"""Longest time in which an overdrawn quota refills to zero: no reported usage may block a client longer."""
MAX_BUSY_SECONDS = 60.0 * (1 + MAX_DEBT_MINUTES)
"""Longest time until a bucket is full again."""
_POLL_SECONDS = 0.01, 0.2  # First and maximum pause between two attempts to acquire a lease.
_NOW = "extract(epoch from clock_timestamp())::float8"
# Also a time in the future is no sign of life: the server's clock was set back.
_ALIVE = f"abs(seen - {_NOW}) < {LEASE_SECONDS}"
# A crash of the server may lose the last commits. No other statement of the transaction follows.
_NOT_DURABLE = "fast as (select set_config('synchronous_commit', 'off', true))"
_TABLES = f"""do $$ begin
    perform pg_advisory_xact_lock({0x6B7670726F7879});
    create table if not exists quotas (
        client text not null, unit text not null, full_at float8 not null, primary key (client, unit));
    update quotas set full_at = {_NOW} + {MAX_BUSY_SECONDS} where full_at > {_NOW} + {MAX_BUSY_SECONDS};
    create table if not exists clock (seen float8 not null);
    insert into clock select {_NOW} where not exists (select 1 from clock);
    create table if not exists proxies (id text primary key, seen float8 not null);
    delete from proxies where not {_ALIVE};
    create table if not exists clients (name text primary key, settings text);
    create table if not exists changes (
        number bigserial primary key, changed float8 not null, operator text not null, change text not null);
    create table if not exists drains (url text primary key);
    {"; ".join(SPENDING_TABLES)};
    create table if not exists leases (key text primary key, owner text not null, acquired float8 not null);
    delete from leases where owner not in (select id from proxies);
end $$"""
# `full_at` is the time when the bucket is full again, in seconds since the epoch: the theoretical arrival time of GCRA.
_TAKE = f"""with {_NOT_DURABLE}, taken as (
    insert into quotas as q (client, unit, full_at)
    select :client, :unit, {_NOW} + least(:seconds, {MAX_BUSY_SECONDS}) from fast
    on conflict (client, unit) do update
    set full_at = least(greatest(q.full_at, {_NOW}) + :seconds, {_NOW} + {MAX_BUSY_SECONDS})
    where :into_debt or greatest(q.full_at, {_NOW}) + :seconds <= {_NOW} + 60
    returning full_at)
    select true as taken, full_at - {_NOW} as seconds from taken
    union all select false, full_at - {_NOW} from quotas
    where client = :client and unit = :unit and not exists (select 1 from taken)"""
_LAST_CHANGE = "select coalesce(max(number), 0) as change from changes"
# If the server's clock was set back, the first heartbeat after it moves all times of quotas.
_HEARTBEAT = f"""with last as (select seen from clock for update),
    now as (update clock set seen = {_NOW}),
    moved as (update quotas set full_at = full_at + {_NOW} - last.seen from last
        where last.seen > {_NOW} + {LEASE_SECONDS}),
    beat as (insert into proxies (id, seen) values (:me, {_NOW})
        on conflict (id) do update set seen = excluded.seen),
    lost as (delete from leases
        where owner = :me and abs(acquired - {_NOW}) > {LEASE_SECONDS} and not (key = any(:held)))
    select count(*) as others, ({_LAST_CHANGE}) as change
    from proxies where id <> :me and {_ALIVE}"""
# With the lock, numbers are committed in order: a proxy that has read the last one has read all earlier changes.
_CHANGE = f"""with locked as (select pg_advisory_xact_lock({0x6B76636F756E74}))
    insert into changes (changed, operator, change) select {_NOW}, :operator, :change from locked"""
_SET_CLIENT = """insert into clients (name, settings) values (:name, :settings)
    on conflict (name) do update set settings = excluded.settings"""
_RESET = """with reset as (delete from quotas where client = :name)
    delete from spending where client = :name"""
_DRAIN = "insert into drains (url) values (:url) on conflict do nothing returning url"
_UNDRAIN = "delete from drains where url = :url returning url"
_CLIENTS = "select settings from clients order by name"
_ACQUIRE = f"""with {_NOT_DURABLE} insert into leases as l (key, owner, acquired) select :key, :me, {_NOW} from fast
    on conflict (key) do update set owner = excluded.owner, acquired = excluded.acquired
    where not exists (select 1 from proxies p where p.id = l.owner and {_ALIVE})
    returning key"""
_RELEASE = f"with {_NOT_DURABLE} delete from leases using fast where key = :key and owner = :me"


async def _ignore(change: int) -> None: ...


class SharedState:
    """Quotas, requests in flight, and operators' changes, which the proxies of one PostgreSQL store share.

    Methods may raise a CacheStoreError.

    Attributes:
        proxies: number of running proxies at the last heartbeat.
        on_heartbeat: called after each heartbeat, with the number of the last change by an operator.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.spending: SpendingTables = database
        self._id = uuid4().hex
        self._failures = FailureLog()
        self._held: set[str] = set()
        self.proxies = 1
        self.on_heartbeat: Callable[[int], Awaitable[None]] = _ignore
        database.query(_TABLES)

    async def take_units(self, client: str, unit: str, seconds: float, *, into_debt: bool) -> tuple[bool, float]:
        """Take units (requests or tokens) from a client's bucket, which refills in 60 seconds.

        Return whether the units were taken, and the seconds until the bucket is full.

        Args:
            seconds: the units to take, as the time in which the bucket refills them; negative to return units.
            into_debt: take units that are not available.
        """
        values = {"client": client, "unit": unit, "seconds": seconds, "into_debt": into_debt}
        try:
            async with asyncio.timeout(QUOTA_SECONDS):
                row = (await asyncio.to_thread(self._database.query, _TAKE, values))[0]
        except TimeoutError:
            raise CacheStoreError(f"the database did not answer within {QUOTA_SECONDS:g} s") from None
        return row["taken"], row["seconds"]

    async def acquire_lease(self, key: str) -> None:
        """Wait until this proxy holds the lease of a key, which the caller must release."""
        pause, longest = _POLL_SECONDS
        while not await asyncio.to_thread(self._database.query, _ACQUIRE, {"key": key, "me": self._id}):
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
        # Not before: while requests wait, heartbeats must end a lease whose acquisition or release failed.
        self._held.add(key)

    async def release_lease(self, key: str) -> None:
        self._held.discard(key)
        await asyncio.to_thread(self._database.query, _RELEASE, {"key": key, "me": self._id})

    async def send_heartbeat(self) -> None:
        """Send a heartbeat. Update `proxies`, call `on_heartbeat`, and release leases that no request holds."""
        values = {"me": self._id, "held": list(self._held)}
        row = (await asyncio.to_thread(self._database.query, _HEARTBEAT, values))[0]
        self.proxies = 1 + row["others"]
        await self.on_heartbeat(row["change"])

    async def send_heartbeats_periodically(self) -> None:
        self._database.expect_answers(_MAX_SILENCE)
        while True:
            try:
                await self.send_heartbeat()
                self._failures.log_recovery("all proxies share their quotas again")
            except CacheStoreError:
                message = "the shared state is unavailable: until it works again, this proxy grants 1/%s of each quota"
                self._failures.log_failure(message, self.proxies)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def unregister(self) -> None:
        self._database.query("delete from proxies where id = :me", {"me": self._id})

    def client_settings(self) -> list[str | None]:
        """Return the settings (JSON) of each client of `kvproxy keys`; None for a removed client."""
        return SharedClients(self._database.query).settings()

    @contextmanager
    def changing_clients(self) -> "Iterator[SharedClients]":
        """Open a transaction that changes clients. Only one is open at a time in all proxies and commands."""
        with self._database.transaction() as query:
            yield SharedClients(query)

    def drained_upstreams(self) -> set[str]:
        """Return the URLs of the upstreams that operators drain."""
        return {row["url"] for row in self._database.query("select url from drains")}

    def set_drained(self, url: str, operator: str, *, drained: bool) -> None:
        """Drain an upstream for all proxies, or end that, and record the change, unless nothing would change."""
        with self._database.transaction() as query:
            if query(_DRAIN if drained else _UNDRAIN, {"url": url}):
                verb = "drain" if drained else "undrain"
                query(_CHANGE, {"operator": operator, "change": f"{verb} upstream {url}"})

    def record_change(self, operator: str, change: str) -> None:
        self._database.query(_CHANGE, {"operator": operator, "change": change})

    def last_change(self) -> int:
        """Return the number of the last change by an operator, as heartbeats have it."""
        return int(self._database.query(_LAST_CHANGE)[0]["change"])

    def changes(self, limit: int | None) -> list[Row]:
        """Return the last changes by operators: `changed` (seconds since the epoch), `operator`, `change`."""
        sql = "select changed, operator, change from changes order by number desc limit :limit"
        return self._database.query(sql, {"limit": limit})


class SharedClients:
    """The clients of `kvproxy keys` in PostgreSQL, and their counts, as `query` reads and changes them."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def settings(self) -> list[str | None]:
        """Return the settings (JSON) of each client; None for a removed client."""
        return [row["settings"] for row in self._query(_CLIENTS, {})]

    def set(self, name: str, settings: str | None) -> None:
        """Store a client, or remove it if `settings` (JSON) is None."""
        self._query(_SET_CLIENT, {"name": name, "settings": settings})

    def reset_counts(self, name: str) -> None:
        """Start a client's counts of requests, tokens, and spent money again."""
        self._query(_RESET, {"name": name})

    def record(self, operator: str, change: str) -> None:
        self._query(_CHANGE, {"operator": operator, "change": change})
