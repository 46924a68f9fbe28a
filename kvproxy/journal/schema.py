"""The journal's file: its tables, and the public view `requests`. docs/records.md describes both."""

import contextlib
import hashlib
import logging
import sqlite3
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from kvproxy.errors import KvproxyError, NotFound
from kvproxy.index.store.sqlite.connection import connect, create_schema, make_private
from kvproxy.journal.record import Record
from kvproxy.journal.sessions.ledger import CAUSES
from kvproxy.journal.string_ids import StringIds

VERSION = 1
FILE = "journal.db"
_log = logging.getLogger("kvproxy")

# Repeated strings are stored once, and times are whole microseconds, so that a million records stay small. An index would
# cost as much as the record itself. Columns that every record has come first.
_TABLES = (
    "create table names (number integer primary key, name text not null unique)",
    "create table prompts (number integer primary key, key blob not null unique, question blob, regions blob,"
    " shape integer, entry text, expires float, seconds float, last integer, text text, whole blob)",
    "create index prompts_question on prompts (question) where question is not null",
    "create table records (number integer primary key, time float not null, request text not null, tenant integer not null,"
    " client integer, api integer not null, model integer not null, status integer not null, layer integer not null,"
    " reason integer not null, prompt integer, entry, prompt_tokens integer, completion_tokens integer, exact_us integer,"
    " total_us integer, first_us integer, semantic_us integer, backend_us integer, prefill_us integer, upstream integer,"
    " changed integer,"
    " removed_at float, against integer, near, similarity float, score float, error float, guard integer,"
    " predicted_tokens integer, reused_tokens integer, tags integer)",
    "create table tombstones (key blob primary key, reason text not null, time float not null) without rowid",
    "create index tombstones_time on tombstones (time)",
    "create table totals (day text not null, tenant text not null, model text not null, layer text not null,"
    " tag text not null, requests integer not null, prompt_tokens integer not null, completion_tokens integer not null,"
    " reused_tokens integer not null, saved_seconds float not null,"
    " primary key (day, tenant, model, layer, tag)) without rowid",
    "create table turns (number integer primary key, session integer not null, turn integer not null,"
    " parent integer, name integer, pause float, written_5m integer, written_1h integer, region integer, place integer,"
    f" {', '.join(f'{cause} integer' for cause in CAUSES)})",
    "create index turns_session on turns (session)",
    "create table prompt_sizes (prompt integer primary key, sizes blob not null)",
    "create table prompt_tokens (day text not null, tenant text not null, model text not null,"
    " result text not null, tokens integer not null, primary key (day, tenant, model, result)) without rowid",
)
_STRINGS = ("tenant", "client", "api", "model", "upstream", "layer", "reason", "changed", "guard", "tags")
_DIGESTS = ("entry", "near", "key")
_OF_PROMPT = ("key", "text")
_KEY_BYTES = 16
_ID_DIGITS = 32


def _stored_name(field: str) -> str:
    return {"request_id": "request"}.get(field, f"{field.removesuffix('_ms')}_us" if field.endswith("_ms") else field)


def _column_sql(name: str) -> str:
    source = f"p.{name}" if name in _OF_PROMPT else f"r.{_stored_name(name)}"
    if name in _STRINGS:
        return f"(select name from names where number = {source}) as {name}"
    if name in _DIGESTS:
        return f"case typeof({source}) when 'blob' then lower(hex({source})) else {source} end as {name}"
    return f"{source} / 1000.0 as {name}" if name.endswith("_ms") else f"{source} as {name}"


COLUMNS = tuple(field.name for field in fields(Record))
_STORED = tuple(name for name in COLUMNS if name not in _OF_PROMPT)
INSERT = f"insert into records ({', '.join(map(_stored_name, _STORED))}) values ({', '.join('?' * len(_STORED))})"
_VIEW = (
    f"create view requests as select {', '.join(map(_column_sql, COLUMNS))}"
    " from records r left join prompts p on p.number = r.prompt"
)


def row_of(record: Record, strings: StringIds) -> list[object]:
    return [_stored_value(name, getattr(record, name), strings) for name in _STORED]


def _stored_value(name: str, value: Any, strings: StringIds) -> object:
    if value is None or (name == "tags" and not value):
        return None
    if name in _STRINGS:
        return strings.id_of(value)
    if name in _DIGESTS:
        return entry_blob(value)
    return round(value * 1000) if name.endswith("_ms") else value


def short_key(key: str) -> bytes:
    """Return the first 16 bytes of an exact key, or of a digest of an imported key that is not hexadecimal."""
    try:
        return bytes.fromhex(key[: 2 * _KEY_BYTES])
    except ValueError:
        return hashlib.sha256(key.encode("utf-8", "replace")).digest()[:_KEY_BYTES]


def entry_blob(id: str) -> bytes | str:
    """Return an entry id as bytes; an imported id that is not hexadecimal stays text."""
    try:
        return bytes.fromhex(id) if len(id) == _ID_DIGITS else id
    except ValueError:
        return id


def open_file(path: Path) -> sqlite3.Connection:
    """Open the file for writing, and create it if it is missing.

    Raises:
        sqlite3.Error: the file is not a journal.
        SchemaVersionError: another version of kvproxy created it.
    """
    make_private(path)
    connection = connect(path)
    # A killed process loses no commit. A power failure may lose the last ones.
    connection.execute("pragma synchronous=normal")
    try:
        create_schema(connection, f"the journal {path}", VERSION, (*_TABLES, _VIEW))
        for table in ("records", "prompts", "totals", "turns"):
            connection.execute(f"select * from {table} limit 1").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def open_or_replace(path: Path, clock: Callable[[], float]) -> sqlite3.Connection:
    """Open the file. A damaged file is renamed to `journal.db.damaged-TIME` and replaced with an empty one.

    SQLite's `.recover` may read the renamed file.
    """
    try:
        return open_file(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
            # The file may be intact: the disk is full, or the file is locked.
            raise
        aside = path.with_name(f"{path.name}.damaged-{int(clock())}")
        path.rename(aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
        _log.warning("the journal is damaged (%s): set aside as %s, and a new one begins", error, aside)
        return open_file(path)


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open the file for reading only; raises NotFound or KvproxyError."""
    allowed = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
    if not path.is_file():
        raise NotFound(f"no journal at {path}: kvproxy serve writes one; --data names its folder")
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10.0)
        connection.execute("pragma query_only=on")
        connection.execute("select 1 from requests limit 1").fetchone()
        # A condition of a user may read this file, and nothing else.
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY)
    except sqlite3.Error as error:
        raise KvproxyError(f"cannot read the journal {path}: {error}") from None
    return connection
