"""Creates and migrates the store's schema in PostgreSQL."""

from dataclasses import dataclass
from typing import Any

import psycopg

from kvproxy.index.errors import SchemaVersionError
from kvproxy.index.store.rows import SERVABLE_UNTIL


@dataclass(frozen=True)
class Migration:
    """A change of the schema, which a new proxy makes at its start. Proxies of older versions may be running.

    Attributes:
        compatible_since: the oldest version whose code works with the changed schema. Keep this version if you add a table, or
            a column with a default. If you remove a column, set it to the first version that does not use the column.
    """

    statements: tuple[str, ...]
    compatible_since: int = 1


MIGRATIONS: tuple[Migration, ...] = ()
"""Changes of the schema in order; the first change leads from version 1 to version 2. Append only."""
_LOCK = 0x6B7670726F7879  # "kvproxy" in ASCII. Proxies that start at the same time acquire it one after another.

# Triggers maintain the totals, so that no write counts rows.
_SCHEMA = (
    "create extension if not exists vector schema public",
    "create table schema_version (version integer not null, compatible_since integer not null default 1)",
    "insert into schema_version values (1, 1)",
    """create table responses (
        id text collate "C" primary key, key text collate "C" not null unique, namespace text collate "C" not null,
        tenant text not null, model text not null, endpoint text not null, prompt text not null, semantic integer not null,
        request bytea not null, response bytea not null, created float8 not null, expires float8 not null,
        stale_while_revalidate float8 not null, stale_if_error float8 not null, hits bigint not null, last_hit float8,
        prompt_tokens bigint not null, completion_tokens bigint not null, tags text not null, backend text not null,
        request_id text not null, sealed text not null, checksum text not null, bytes bigint not null,
        priority float8 not null)""",
    "create index on responses (created, id)",
    "create index on responses (priority, id)",
    "create index on responses (tenant, priority, id, bytes)",
    "create index on responses (sealed) where sealed <> ''",
    f"create index on responses (({SERVABLE_UNTIL}))",
    'create table tags (tag text not null, id text collate "C" not null, primary key (tag, id))',
    "create index on tags (id)",
    """create table vectors (
        number bigserial primary key, id text collate "C" not null, embedder text not null,
        namespace text collate "C" not null, vector public.vector not null, unique (id, embedder))""",
    "create index on vectors (embedder, namespace)",
    """create table answers (
        entry text collate "C" primary key references responses (id) on delete cascade,
        namespace text collate "C" not null, name text collate "C" not null, text text collate "C" not null)""",
    "create index on answers (namespace, text)",
    "create table totals (entries bigint not null, bytes bigint not null, age float8 not null)",
    "insert into totals values (0, 0, 0)",
    "create table tenants (tenant text primary key, entries bigint not null, bytes bigint not null)",
    """create function count_added() returns trigger language plpgsql as $$ begin
        update kvproxy.totals set entries = entries + (select count(*) from added),
            bytes = bytes + (select coalesce(sum(a.bytes), 0) from added a);
        insert into kvproxy.tenants as h select a.tenant, count(*), sum(a.bytes) from added a group by a.tenant
            on conflict (tenant) do update set entries = h.entries + excluded.entries, bytes = h.bytes + excluded.bytes;
        return null; end $$""",
    """create function count_removed() returns trigger language plpgsql as $$ begin
        update kvproxy.totals set entries = entries - (select count(*) from removed),
            bytes = bytes - (select coalesce(sum(r.bytes), 0) from removed r);
        update kvproxy.tenants h set entries = h.entries - r.entries, bytes = h.bytes - r.bytes
            from (select tenant, count(*) as entries, sum(bytes) as bytes from removed group by tenant) r
            where h.tenant = r.tenant;
        delete from kvproxy.tenants h using removed r where h.tenant = r.tenant and h.entries = 0;
        return null; end $$""",
    "create trigger added after insert on responses referencing new table as added"
    " for each statement execute function count_added()",
    "create trigger removed after delete on responses referencing old table as removed"
    " for each statement execute function count_removed()",
    """create table observations (
        number bigserial primary key, entry text collate "C" not null, "right" boolean not null, source text not null,
        accepted boolean not null, created float8 not null, namespace text collate "C" not null, details text not null)""",
    "create index on observations (entry, number)",
    "create index on observations (entry, number) where source = 'user'",
    "create index on observations (namespace, number)",
    """create table learned (
        namespace text collate "C" primary key, number bigint not null, state text not null,
        pruned bigint not null default 0)""",
    """create table pruned_totals (
        observed bigint not null, agreed bigint not null, accepted bigint not null, accepted_wrong bigint not null)""",
    "insert into pruned_totals values (0, 0, 0, 0)",
)
# Not in the schema, because stores of the same version may lack it.
_INVALIDATIONS = (
    "create table if not exists invalidations (number bigserial primary key, key text not null, namespace text not null,"
    " tag text not null)"
)


def create_schema(connection: psycopg.Connection[Any], database_name: str) -> None:
    """Create or migrate the schema; raises a SchemaVersionError if this version of kvproxy cannot use it. Process-safe."""
    supported = 1 + len(MIGRATIONS)
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(%s)", [_LOCK])
        versions = _versions(connection)
        if versions is None:
            connection.execute("create schema if not exists kvproxy")
        connection.execute("set local search_path = kvproxy, public")
        if versions is None:
            for statement in _SCHEMA:
                connection.execute(statement.encode())
            versions = 1, 1
        connection.execute(_INVALIDATIONS.encode())
        version, compatible_since = versions
        if version == 0 or compatible_since > supported:
            raise SchemaVersionError(database_name, version, supported)
        if version < supported:
            _migrate(connection, version)


def _migrate(connection: psycopg.Connection[Any], version: int) -> None:
    # Statements that wait for this one's locks must not wait longer than their own timeout.
    connection.execute("set local lock_timeout = '5s'")
    for migration in MIGRATIONS[version - 1 :]:
        version += 1
        for statement in migration.statements:
            connection.execute(statement.encode())
        connection.execute(
            "update schema_version set version = %s, compatible_since = %s", [version, migration.compatible_since]
        )


def _versions(connection: psycopg.Connection[Any]) -> tuple[int, int] | None:
    tables = {row[0] for row in connection.execute("select tablename from pg_tables where schemaname = 'kvproxy'")}
    if not tables:
        return None
    if "schema_version" not in tables:
        return 0, 0
    sql = "select version, compatible_since from kvproxy.schema_version"
    versions: tuple[int, int] | None = connection.execute(sql).fetchone()
    return versions or (0, 0)
