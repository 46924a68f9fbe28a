"""State that all proxies on one PostgreSQL share: the usage of quotas, and which proxies are alive.

The store's schema holds the tables. Older proxies ignore them, so that a rolling upgrade needs no migration.
"""

import asyncio
import logging
from uuid import uuid4

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.failure_log import FailureLog
from kvproxy.index.store.database import Database

BEAT_SECONDS = 1.0
LEASE_SECONDS = 5.0
"""A proxy without a heartbeat for this time counts as dead."""
_NOW = "extract(epoch from clock_timestamp())::float8"
_ALIVE = f"seen > {_NOW} - {LEASE_SECONDS}"
# A crash of the server may lose the last commits. No other statement of the transaction follows.
_NOT_DURABLE = "fast as (select set_config('synchronous_commit', 'off', true))"
_TABLES = f"""do $$ begin
    perform pg_advisory_xact_lock({0x6B7670726F7879});
    create table if not exists quotas (
        client text not null, unit text not null, full_at float8 not null, primary key (client, unit));
    create table if not exists proxies (id text primary key, seen float8 not null);
    delete from proxies where not {_ALIVE};
end $$"""
# `full_at` is the time when the bucket is full again, in seconds since the epoch: the theoretical arrival time of GCRA.
_TAKE = f"""with {_NOT_DURABLE}, taken as (
    insert into quotas as q (client, unit, full_at) select :client, :unit, {_NOW} + :seconds from fast
    on conflict (client, unit) do update set full_at = greatest(q.full_at, {_NOW}) + :seconds
    where :into_debt or greatest(q.full_at, {_NOW}) + :seconds <= {_NOW} + 60
    returning full_at)
    select true as taken, full_at - {_NOW} as seconds from taken
    union all select false, full_at - {_NOW} from quotas
    where client = :client and unit = :unit and not exists (select 1 from taken)"""
_BEAT = f"""with beat as (insert into proxies (id, seen) values (:me, {_NOW})
    on conflict (id) do update set seen = excluded.seen)
    select count(*) as others from proxies where id <> :me and {_ALIVE}"""
_log = logging.getLogger("kvproxy")


class SharedState:
    """The shared state in the database of a store. Methods may raise a CacheStoreError.

    Attributes:
        proxies: living proxies, as of the last heartbeat.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._id = uuid4().hex
        self._failures = FailureLog()
        self.proxies = 1
        database.query(_TABLES)

    async def take(self, client: str, unit: str, seconds: float, *, into_debt: bool) -> tuple[bool, float]:
        """Take units of a client's bucket, which holds 60 seconds.

        Args:
            seconds: in which the bucket refills the units; negative to return units.
            into_debt: take the units even if they are not available.

        Returns:
            Whether the units were taken, and the seconds until the bucket is full.
        """
        values = {"client": client, "unit": unit, "seconds": seconds, "into_debt": into_debt}
        row = (await asyncio.to_thread(self._database.query, _TAKE, values))[0]
        return row["taken"], row["seconds"]

    async def beat(self) -> None:
        """Report that this proxy is alive, and count the living proxies."""
        rows = await asyncio.to_thread(self._database.query, _BEAT, {"me": self._id})
        self.proxies = 1 + rows[0]["others"]

    async def run(self) -> None:
        """Beat until the task is cancelled."""
        while True:
            try:
                await self.beat()
                self._failures.log_recovery("all proxies share their quotas again")
            except CacheStoreError:
                message = "the shared state is unavailable: until it works again, this proxy grants 1/%s of each quota"
                self._failures.log_failure(message, self.proxies)
            await asyncio.sleep(BEAT_SECONDS)

    def leave(self) -> None:
        """Remove this proxy from the living ones."""
        self._database.query("delete from proxies where id = :me", {"me": self._id})
