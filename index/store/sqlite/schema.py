from kvproxy.index.store.sql_fragments import SERVABLE_UNTIL

VERSION = 1
"""Increase it with every change of the schema."""

# Triggers maintain the totals, so that no write counts rows. Vector numbers are never reused.
SCHEMA = (
    "create table responses (id text primary key, key text not null unique, namespace text not null, tenant text not null,"
    " model text not null, endpoint text not null, prompt text not null, semantic integer not null, request blob not null,"
    " response blob not null, created float not null, expires float not null, stale_while_revalidate float not null,"
    " stale_if_error float not null, hits integer not null, last_hit float, prompt_tokens integer not null,"
    " completion_tokens integer not null, tags text not null, backend text not null, request_id text not null,"
    " sealed text not null, checksum text not null, bytes integer not null, priority float not null)",
    "create index responses_created on responses (created)",
    "create index responses_priority on responses (priority, id)",
    "create index responses_tenant on responses (tenant, priority, id, bytes)",
    "create index responses_sealed on responses (sealed) where sealed <> ''",
    "create index responses_semantic on responses (id) where semantic = 1",
    f"create index responses_servable on responses (({SERVABLE_UNTIL}))",
    "create table tags (tag text not null, id text not null, primary key (tag, id)) without rowid",
    "create index tags_id on tags (id)",
    "create table vectors (number integer primary key autoincrement, id text not null, embedder text not null,"
    " namespace text not null, vector blob not null)",
    "create unique index vectors_id on vectors (id, embedder)",
    "create index vectors_namespace on vectors (embedder, namespace, number, id)",
    "create table answers (entry text primary key, namespace text not null, name text not null, text text not null)"
    " without rowid",
    "create index answers_text on answers (namespace, text)",
    "create table totals (entries integer not null, bytes integer not null, age float not null)",
    "insert into totals values (0, 0, 0)",
    "create table tenants (tenant text primary key, entries integer not null, bytes integer not null)",
    "create trigger responses_added after insert on responses begin"
    " update totals set entries = entries + 1, bytes = bytes + new.bytes;"
    " insert into tenants values (new.tenant, 1, new.bytes)"
    " on conflict (tenant) do update set entries = entries + 1, bytes = bytes + excluded.bytes; end",
    "create trigger responses_removed after delete on responses begin"
    " update totals set entries = entries - 1, bytes = bytes - old.bytes;"
    " update tenants set entries = entries - 1, bytes = bytes - old.bytes where tenant = old.tenant;"
    " delete from tenants where tenant = old.tenant and entries = 0;"
    " delete from answers where entry = old.id; end",
    'create table observations (number integer primary key, entry text not null, "right" integer not null,'
    " source text not null, accepted integer not null, created float not null, namespace text not null,"
    " details text not null)",
    "create index observations_entry on observations (entry, number)",
    "create index observations_verdicts on observations (entry, number) where source = 'user'",
    "create index observations_namespace on observations (namespace, number)",
    "create table learned (namespace text primary key, number integer not null, state text not null,"
    " pruned integer not null default 0)",
    "create table pruned_totals (observed integer not null, agreed integer not null, accepted integer not null,"
    " accepted_wrong integer not null)",
    "insert into pruned_totals values (0, 0, 0, 0)",
)
