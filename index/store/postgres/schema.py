"""The schema of a store in PostgreSQL as a list of steps. Steps are only ever added; an old store is brought up to date."""

from typing import Any

import psycopg

from kvproxy.index.store.observations import M003 as M003_PRUNED
from kvproxy.index.store.sqlite.schema import M006 as M006_SEALED
from kvproxy.index.store.sqlite.schema import M007 as M007_CHECKSUMS
from kvproxy.index.store.sqlite.schema import M008 as M008_TENANTS
from kvproxy.index.store.sqlite.schema import M009 as M009_STALE
from kvproxy.index.store.sqlite.schema import M010 as M010_SUMS

_LOCK = 0x6B7670726F7879  # "kvproxy": proxies that start together take turns.

_M001_RESPONSES = (
    "create extension if not exists vector schema public",
    """create table responses (
        id text collate "C" primary key, key text collate "C" not null unique, namespace text collate "C" not null,
        tenant text not null, model text not null, endpoint text not null, prompt text not null, semantic integer not null,
        request bytea not null, response bytea not null, created float8 not null, expires float8 not null,
        hits bigint not null, last_hit float8, prompt_tokens bigint not null, completion_tokens bigint not null,
        tags text not null, backend text not null, request_id text not null, bytes bigint not null,
        priority float8 not null)""",
    "create index on responses (created, id)",
    "create index on responses (priority, id)",
    "create index on responses (expires)",
    'create table tags (tag text not null, id text collate "C" not null, primary key (tag, id))',
    "create index on tags (id)",
    """create table vectors (
        number bigserial primary key, id text collate "C" not null, embedder text not null,
        namespace text collate "C" not null, vector public.vector not null, unique (id, embedder))""",
    "create index on vectors (embedder, namespace)",
    "create table totals (entries bigint not null, bytes bigint not null, age float8 not null)",
    "insert into totals values (0, 0, 0)",
    """create function count_added() returns trigger language plpgsql as $$ begin
        update kvproxy.totals set entries = entries + (select count(*) from added),
            bytes = bytes + (select coalesce(sum(a.bytes), 0) from added a);
        return null; end $$""",
    """create function count_removed() returns trigger language plpgsql as $$ begin
        update kvproxy.totals set entries = entries - (select count(*) from removed),
            bytes = bytes - (select coalesce(sum(r.bytes), 0) from removed r);
        return null; end $$""",
    "create trigger added after insert on responses referencing new table as added"
    " for each statement execute function count_added()",
    "create trigger removed after delete on responses referencing old table as removed"
    " for each statement execute function count_removed()",
)
_M002_OBSERVATIONS = (
    """create table observations (
        number bigserial primary key, entry text collate "C" not null, score float8, "right" boolean not null,
        scorer text not null, source text not null, accepted boolean not null, created float8 not null)""",
    "create index on observations (entry, number)",
    "create index on observations (entry, number) where source = 'user'",
    "create index on observations (scorer, number)",
)
_M003_LEARNED = (
    "alter table observations drop column score, drop column scorer",
    "alter table observations add column namespace text collate \"C\" not null default '', add column details text",
    "create index on observations (namespace, number)",
    """create table learned (namespace text collate "C" primary key, number bigint not null, state text not null)""",
    """create table answers (
        entry text collate "C" primary key references responses (id) on delete cascade,
        namespace text collate "C" not null, name text collate "C" not null, text text collate "C" not null,
        vector bytea, embedder text not null)""",
    "create index on answers (namespace, text)",
)
_M009_PURGES = (
    "drop index responses_expires_idx",
    *M009_STALE,
    """create table purges (
        number bigserial primary key, time float8 not null, who text not null, what text not null, soft integer not null,
        entries bigint not null)""",
)
_M010_SUMS_OF_TENANTS = (
    *M010_SUMS,
    """create function tenants_added() returns trigger language plpgsql as $$ begin
        insert into kvproxy.tenants as h select a.tenant, count(*), sum(a.bytes) from added a group by a.tenant
            on conflict (tenant) do update set entries = h.entries + excluded.entries, bytes = h.bytes + excluded.bytes;
        return null; end $$""",
    """create function tenants_removed() returns trigger language plpgsql as $$ begin
        update kvproxy.tenants h set entries = h.entries - r.entries, bytes = h.bytes - r.bytes
            from (select tenant, count(*) as entries, sum(bytes) as bytes from removed group by tenant) r
            where h.tenant = r.tenant;
        delete from kvproxy.tenants h using removed r where h.tenant = r.tenant and h.entries = 0;
        return null; end $$""",
    "create trigger tenants_added after insert on responses referencing new table as added"
    " for each statement execute function tenants_added()",
    "create trigger tenants_removed after delete on responses referencing old table as removed"
    " for each statement execute function tenants_removed()",
)
_STEPS = (
    *(_M001_RESPONSES, _M002_OBSERVATIONS, _M003_LEARNED, M003_PRUNED, M006_SEALED, M007_CHECKSUMS, M008_TENANTS),
    _M009_PURGES,
    _M010_SUMS_OF_TENANTS,
)


def migrate(connection: psycopg.Connection[Any]) -> None:
    """Take the steps that the database has not taken yet, in one transaction.

    Raises:
        psycopg.Error: the server refused.
    """
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(%s)", [_LOCK])
        connection.execute("create schema if not exists kvproxy")
        connection.execute("set local search_path = kvproxy, public")
        connection.execute("create table if not exists steps (number integer primary key)")
        taken = {row[0] for row in connection.execute("select number from steps")}
        for number, statements in enumerate(_STEPS, 1):
            if number not in taken:
                for statement in statements:
                    connection.execute(statement.encode())
                connection.execute("insert into steps values (%s)", [number])
