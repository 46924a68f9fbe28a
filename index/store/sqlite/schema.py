"""The store's schema as a list of steps. Steps are only ever added: an old file is brought up to date when opened."""

from typing import TYPE_CHECKING

from kvproxy.index.store.freshness_sql import KEPT_UNTIL

if TYPE_CHECKING:
    from sqlite_utils import Database


def m001_responses(db: "Database") -> None:
    table = db["responses"]
    table.create(
        {
            "id": str,
            "key": str,
            "namespace": str,
            "tenant": str,
            "model": str,
            "endpoint": str,
            "prompt": str,
            "semantic": int,
            "request": bytes,
            "response": bytes,
            "created": float,
            "expires": float,
            "hits": int,
            "last_hit": float,
            "prompt_tokens": int,
            "completion_tokens": int,
        },
        pk="id",
        defaults={"hits": 0},
    )
    table.create_index(["key"], unique=True)
    table.create_index(["namespace"])
    table.create_index(["created"])


def m002_vectors(db: "Database") -> None:
    db["vectors"].create({"id": str, "embedder": str, "vector": bytes}, pk=("id", "embedder"))


def m003_totals(db: "Database") -> None:
    for sql in _M003:
        db.execute(sql)


def m004_vectors_by_number(db: "Database") -> None:
    for sql in _M004:
        db.execute(sql)


def m005_answers(db: "Database") -> None:
    for sql in _M005:
        db.execute(sql)


def m006_sealed(db: "Database") -> None:
    for sql in M006:
        db.execute(sql)


def m007_checksums(db: "Database") -> None:
    for sql in M007:
        db.execute(sql)


def m008_tenants(db: "Database") -> None:
    for sql in M008:
        db.execute(sql)


def m009_stale(db: "Database") -> None:
    for sql in ("drop index idx_responses_expires", *M009, _M009_PURGES):
        db.execute(sql)


def m010_sums_of_tenants(db: "Database") -> None:
    for sql in (*M010, *_M010_TRIGGERS):
        db.execute(sql)


def m011_puts(db: "Database") -> None:
    for sql in _M011:
        db.execute(sql)


NAME = "kvproxy"
STEPS = (
    m001_responses,
    m002_vectors,
    m003_totals,
    m004_vectors_by_number,
    m005_answers,
    m006_sealed,
    m007_checksums,
    m008_tenants,
    m009_stale,
    m010_sums_of_tenants,
    m011_puts,
)

# Sizes, priorities, tags and provenance; and what there is in sum, kept by triggers, so that no write has to count.
_M003 = (
    "alter table responses add column tags text not null default '[]'",
    "alter table responses add column backend text not null default ''",
    "alter table responses add column request_id text not null default ''",
    "alter table responses add column bytes integer not null default 0",
    "alter table responses add column priority float not null default 0",
    "update responses set bytes = 1 + length(request) + length(response) + length(cast(prompt as blob))"
    " + coalesce((select max(length(vector)) from vectors where vectors.id = responses.id), 0)",
    "update responses set priority = (hits + 1) * max(1, prompt_tokens + completion_tokens) * 1.0 / bytes",
    "create index idx_responses_priority on responses (priority, id)",
    "create index idx_responses_expires on responses (expires)",
    "create index idx_responses_semantic on responses (id) where semantic = 1",
    "create table tags (tag text not null, id text not null, primary key (tag, id)) without rowid",
    "create index idx_tags_id on tags (id)",
    "create table totals (entries integer not null, bytes integer not null, age float not null, identity text not null)",
    "insert into totals select count(*), coalesce(sum(bytes), 0), 0, lower(hex(randomblob(16))) from responses",
    "create trigger responses_added after insert on responses begin"
    " update totals set entries = entries + 1, bytes = bytes + new.bytes; end",
    "create trigger responses_removed after delete on responses begin"
    " update totals set entries = entries - 1, bytes = bytes - old.bytes; end",
)
# A number never comes back, so an index can be compared with the store; the index of columns answers all but the vectors.
_M004 = (
    "create table numbered (number integer primary key autoincrement, id text not null, embedder text not null,"
    " namespace text not null, vector blob not null)",
    "insert into numbered (id, embedder, namespace, vector)"
    " select v.id, v.embedder, r.namespace, v.vector from vectors v join responses r on r.id = v.id order by r.created",
    "drop table vectors",
    "alter table numbered rename to vectors",
    "create unique index idx_vectors_id on vectors (id, embedder)",
    "create index idx_vectors_namespace on vectors (embedder, namespace, number, id)",
)
# What answers say, to tell which are the same; they go with their entries.
_M005 = (
    "create table answers (entry text primary key, namespace text not null, name text not null, text text not null,"
    " vector blob, embedder text not null) without rowid",
    "create index idx_answers_text on answers (namespace, text)",
    "create trigger answers_removed after delete on responses begin delete from answers where entry = old.id; end",
)
# The key that an entry's texts are encrypted with; empty where they are in clear. For either kind of store.
M006 = (
    "alter table responses add column sealed text not null default ''",
    "create index idx_responses_sealed on responses (sealed) where sealed <> ''",
)
# Of what an entry holds, because SQLite does not notice a damaged page by itself; empty where an entry is older than this.
M007 = ("alter table responses add column checksum text not null default ''",)
# What a tenant has in sum, and which of it goes first, are read from the index alone. For either kind of store.
M008 = ("create index idx_responses_tenant on responses (tenant, priority, id, bytes)",)
# For how long an entry is kept past its time. For either kind of store.
M009 = (
    "alter table responses add column stale_while_revalidate float8 not null default 0",
    "alter table responses add column stale_if_error float8 not null default 0",
    f"create index idx_responses_kept on responses (({KEPT_UNTIL}))",
)
# What each tenant has in sum, kept by triggers: counting it for each write takes longer the more a tenant has.
M010 = (
    "create table tenants (tenant text primary key, entries bigint not null, bytes bigint not null)",
    "insert into tenants select tenant, count(*), sum(bytes) from responses group by tenant",
)
_M010_TRIGGERS = (
    "create trigger tenants_added after insert on responses begin"
    " insert into tenants values (new.tenant, 1, new.bytes)"
    " on conflict (tenant) do update set entries = entries + 1, bytes = bytes + excluded.bytes; end",
    "create trigger tenants_removed after delete on responses begin"
    " update tenants set entries = entries - 1, bytes = bytes - old.bytes where tenant = old.tenant;"
    " delete from tenants where tenant = old.tenant and entries = 0; end",
)
# How many entries were ever stored, so that a process that knows the keys notices what others store.
_M011 = (
    "alter table totals add column puts integer not null default 0",
    "drop trigger responses_added",
    "create trigger responses_added after insert on responses begin"
    " update totals set entries = entries + 1, bytes = bytes + new.bytes, puts = puts + 1; end",
)
_M009_PURGES = (
    "create table purges (number integer primary key autoincrement, time float not null, who text not null,"
    " what text not null, soft integer not null, entries integer not null)"
)
