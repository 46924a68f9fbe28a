"""The journal's file: its tables, and the view `requests` that people and programs read. docs/journal.md describes both."""

import contextlib
import logging
import sqlite3
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from kvproxy.errors import KvproxyError, NotFound
from kvproxy.index.steps import apply_steps, connect, make_private
from kvproxy.journal.record import Record

if TYPE_CHECKING:
    from sqlite_utils import Database

NAME = "kvproxy.journal"
FILE = "journal.db"
_log = logging.getLogger("kvproxy")

# Words that come again and again are kept once, and times are whole microseconds: a million records must stay small. There are
# no more indexes than the writer needs: each would cost as much as the record itself.
_TABLES = (
    "create table names (number integer primary key, name text not null unique)",
    "create table prompts (number integer primary key, key blob not null unique, question blob, regions blob,"
    " shape integer, entry text, expires float, seconds float, last integer, text text, whole blob)",
    "create index prompts_question on prompts (question) where question is not null",
    "create table records (number integer primary key, time float not null, request text not null, tenant integer not null,"
    " client integer, api integer not null, model integer not null, upstream integer, status integer not null,"
    " layer integer not null, reason integer not null, changed integer, gone float, against integer, prompt integer,"
    " entry, near,"
    " similarity float, score float, error float, guard integer, prompt_tokens integer, predicted_tokens integer,"
    " reused_tokens integer, completion_tokens integer, exact_us integer, semantic_us integer, backend_us integer,"
    " first_us integer, total_us integer, tags integer)",
    "create table tombstones (key blob primary key, why text not null, time float not null) without rowid",
    "create index tombstones_time on tombstones (time)",
    "create table totals (day text not null, tenant text not null, model text not null, layer text not null,"
    " tag text not null, requests integer not null, prompt_tokens integer not null, completion_tokens integer not null,"
    " reused_tokens integer not null, saved_seconds float not null, expected_wrong float not null,"
    " first_seconds float not null, seconds float not null,"
    " primary key (day, tenant, model, layer, tag)) without rowid",
)
# A file's second form: hits on the same answer are told once for each transaction, and their records are short. A record of any
# other request has it all itself. SQLite writes columns in their order, so those that each record has come first.
_EQUALS = (
    "create table equals (number integer primary key, last integer not null, tenant integer not null, client integer,"
    " api integer not null, model integer not null, status integer not null, layer integer not null, reason integer not null,"
    " prompt integer, entry, prompt_tokens integer, completion_tokens integer, tags integer)"
)
_RECORDS = (
    "create table records (number integer primary key, time float not null, request text not null, equal integer,"
    " exact_us integer, total_us integer, first_us integer, semantic_us integer, backend_us integer, tenant integer,"
    " client integer, api integer, model integer, upstream integer, status integer, layer integer, reason integer,"
    " changed integer, gone float, against integer, prompt integer, entry, near, similarity float, score float, error float,"
    " guard integer, prompt_tokens integer, predicted_tokens integer, reused_tokens integer, completion_tokens integer,"
    " tags integer)"
)
_EARLIER = (
    "number, time, request, exact_us, total_us, first_us, semantic_us, backend_us, tenant, client, api, model, upstream,"
    " status, layer, reason, changed, gone, against, prompt, entry, near, similarity, score, error, guard, prompt_tokens,"
    " predicted_tokens, reused_tokens, completion_tokens, tags"
)
_SHARED = (
    *("tenant", "client", "api", "model", "status", "layer", "reason"),
    *("prompt", "entry", "prompt_tokens", "completion_tokens", "tags"),
)
"""What a hit's record leaves to its row in `equals`."""
_WORDS = ("tenant", "client", "api", "model", "upstream", "layer", "reason", "changed", "guard", "tags")
_DIGESTS = ("entry", "near", "key")
_OTHERS = {"request_id": "r.request", "text": "p.text", "key": "p.key", "first_us": "coalesce(r.first_us, r.total_us)"}


def _column(name: str) -> str:
    """A field of a record, out of the tables."""
    if name in _WORDS:
        return f"(select name from names where number = {_source(name)}) as {name}"
    if name in _DIGESTS:
        # An id that somebody imported may be any text.
        digest = _source(name)
        return f"case typeof({digest}) when 'blob' then lower(hex({digest})) else {digest} end as {name}"
    if name.endswith("_ms"):
        return f"{_source(name.removesuffix('_ms') + '_us')} / 1000.0 as {name}"
    return f"{_source(name)} as {name}"


def _source(column: str) -> str:
    """Where the tables have it."""
    return f"coalesce(r.{column}, e.{column})" if column in _SHARED else _OTHERS.get(column, f"r.{column}")


COLUMNS = tuple(field.name for field in fields(Record))
_VIEW = (
    f"create view requests as select {', '.join(map(_column, COLUMNS))}"
    f" from records r left join equals e on e.number = r.equal left join prompts p on p.number = {_source('prompt')}"
)


def m001_journal(db: "Database") -> None:
    for sql in _TABLES:
        db.execute(sql)


def m002_equals(db: "Database") -> None:
    db.execute("drop view if exists requests")
    db.execute("alter table records rename to earlier")
    for sql in (
        _EQUALS,
        _RECORDS,
        f"insert into records ({_EARLIER}) select {_EARLIER} from earlier",
        "drop table earlier",
    ):
        db.execute(sql)
    db.execute(_VIEW)


def open_file(path: Path) -> sqlite3.Connection:
    """A connection that writes; the file is made if it is missing.

    Raises:
        sqlite3.Error: it is no journal, or cannot be opened.
        OSError: its folder cannot be made.
    """
    make_private(path)
    connection = connect(path)
    # What a killed process has committed is there; only a machine that loses its power may lose the last commits.
    connection.execute("pragma synchronous=normal")
    try:
        apply_steps(connection, NAME, [m001_journal, m002_equals])
        # Reads enough to notice that the file is damaged.
        for table in ("records", "prompts", "totals"):
            connection.execute(f"select * from {table} limit 1").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def open_whole(path: Path, clock: Callable[[], float]) -> sqlite3.Connection:
    """As `open_file`; a damaged file is renamed to `journal.db.damaged-TIME`, and a new one takes its place.

    The proxy must serve without its history, but nothing of it is deleted: SQLite's `.recover` may read the rest.
    """
    try:
        return open_file(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
            # The file may be whole: a full disk, a lock, or rights that are missing.
            raise
        aside = path.with_name(f"{path.name}.damaged-{int(clock())}")
        path.rename(aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
        _log.warning("the journal is damaged (%s): set aside as %s, and a new one begins", error, aside)
        return open_file(path)


def open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that cannot write, whether a proxy runs or not.

    Raises:
        NotFound: there is no journal.
        KvproxyError: it cannot be read.
    """
    allowed = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
    if not path.is_file():
        raise NotFound(f"no journal at {path}: kvproxy serve writes one; --data names its folder")
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10.0)
        connection.execute("pragma query_only=on")
        connection.execute("select 1 from requests limit 1").fetchone()
        # What a user writes as a condition may look at everything here, and at nothing else.
        connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY)
    except sqlite3.Error as error:
        raise KvproxyError(f"cannot read the journal {path}: {error}") from None
    return connection
