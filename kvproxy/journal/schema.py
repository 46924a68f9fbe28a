"""The journal's tables in SQLite, the public view `requests`, and the form of stored values. See docs/records.md."""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import lru_cache
from operator import attrgetter
from typing import Any

from kvproxy.journal.daily_sums import OTHERS, table_of_teams
from kvproxy.journal.databases.database import JournalDatabase
from kvproxy.journal.record import Record
from kvproxy.journal.request_regions import DIGEST_BYTES, Regions
from kvproxy.journal.sessions.ledger import CAUSES

VERSION = 1
FILE = "journal.db"

_TOTALS = (
    "create table totals (day text not null, tenant text not null, model text not null, layer text not null,"
    " tag text not null, requests integer not null, prompt_tokens integer not null, completion_tokens integer not null,"
    " reused_tokens integer not null, saved_seconds float not null, unreported integer not null default 0,"
    " estimated integer not null default 0, estimated_prompt_tokens integer not null default 0,"
    " estimated_completion_tokens integer not null default 0, tiered integer not null default 0,"
    " unpaid integer not null default 0, partial_hits integer not null default 0,"
    " unreported_partial_hits integer not null default 0, inputs_cached_tokens integer not null default 0,"
    " primary key (day, tenant, model, layer, tag)) without rowid"
)
_PROMPT_TOKENS = (
    "create table prompt_tokens (day text not null, tenant text not null, model text not null,"
    " result text not null, tokens integer not null, primary key (day, tenant, model, result)) without rowid"
)


def _of_teams(statement: str) -> str:
    table = statement.split()[2]
    statement = statement.replace(
        f"table {table} (day", f"table if not exists {table_of_teams(table)} (team text not null, day"
    )
    return statement.replace("primary key (", "primary key (team, ")


TABLES_OF_TEAMS = tuple(map(_of_teams, (_TOTALS, _PROMPT_TOKENS)))
"""A journal of an older version is opened for writing with them."""

# Repeated strings are stored once, and times are whole microseconds, so that a million records stay small. An index would
# cost as much as the record itself. Columns that every record has come first.
TABLES = (
    "create table names (number integer primary key, name text not null unique)",
    "create table prompts (number integer primary key, key blob not null unique, question blob, regions blob,"
    " shape integer, entry text, expires float, seconds float, last integer, text text, whole blob)",
    "create index prompts_question on prompts (question) where question is not null",
    "create table records (number integer primary key, time float not null, request text not null, tenant integer not null,"
    " client integer, api integer not null, model integer not null, status integer not null, layer integer not null,"
    " reason integer not null, prompt integer, entry blob, prompt_tokens integer, completion_tokens integer, exact_us integer,"
    " total_us integer, first_us integer, semantic_us integer, backend_us integer, prefill_us integer, upstream integer,"
    " changed integer,"
    " removed_at float, against integer, near blob, similarity float, score float, error float, guard integer,"
    " predicted_tokens integer, reused_tokens integer, tags integer, not_stored integer,"
    " estimated_prompt_tokens integer, estimated_completion_tokens integer, service_tier integer,"
    " upstream_request_id text, response_id text, team integer, reached_limit integer, verdict integer,"
    " modalities text, inputs integer, inputs_cached integer, inputs_cached_tokens integer)",
    "create table tombstones (key blob primary key, reason text not null, time float not null) without rowid",
    "create index tombstones_time on tombstones (time)",
    _TOTALS,
    "create table turns (number integer primary key, session integer not null, turn integer not null,"
    " parent integer, name integer, pause float, written_5m integer, written_1h integer, region integer, place integer,"
    f" {', '.join(f'{cause} integer' for cause in CAUSES)}, diagnosis integer, agrees integer, keep_warm integer,"
    " question blob, missing_mark integer)",
    "create index turns_session on turns (session)",
    "create table prompt_sizes (prompt integer primary key, sizes blob not null)",
    _PROMPT_TOKENS,
    *TABLES_OF_TEAMS,
)
ADDED_COLUMNS = (
    ("records", "not_stored integer"),
    ("records", "estimated_prompt_tokens integer"),
    ("records", "estimated_completion_tokens integer"),
    ("records", "service_tier integer"),
    ("records", "upstream_request_id text"),
    ("records", "response_id text"),
    ("records", "team integer"),
    ("records", "reached_limit integer"),
    ("records", "verdict integer"),
    ("records", "modalities text"),
    ("records", "inputs integer"),
    ("records", "inputs_cached integer"),
    ("records", "inputs_cached_tokens integer"),
    ("totals", "unreported integer not null default 0"),
    ("totals", "estimated integer not null default 0"),
    ("totals", "estimated_prompt_tokens integer not null default 0"),
    ("totals", "estimated_completion_tokens integer not null default 0"),
    ("totals", "tiered integer not null default 0"),
    ("totals", "unpaid integer not null default 0"),
    ("totals", "partial_hits integer not null default 0"),
    ("totals", "unreported_partial_hits integer not null default 0"),
    ("totals", "inputs_cached_tokens integer not null default 0"),
    ("turns", "diagnosis integer"),
    ("turns", "agrees integer"),
    ("turns", "keep_warm integer"),
    ("turns", "question blob"),
    ("turns", "concurrent integer"),
    ("turns", "missing_mark integer"),
)
"""Columns of `TABLES` that a journal of an older version lacks; it is opened for writing with them."""
STRINGS = (
    "tenant",
    "client",
    "api",
    "model",
    "upstream",
    "layer",
    "reason",
    "changed",
    "guard",
    "tags",
    "not_stored",
    "service_tier",
    "team",
    "reached_limit",
    "verdict",
    "proxy",
)
TURN_STRINGS = ("name", "region", "diagnosis", "keep_warm", "missing_mark")
_DIGESTS = ("entry", "near", "key")
OF_PROMPT = ("key", "text")
_KEY_BYTES = 16
_ID_DIGITS = 32
_MAX_LENGTH = 300
MAX_SHAPE = 32_768
"""Maximum characters of the names of a request's regions. No region of a request with more is stored."""
MAX_NAMES = 100_000
"""Maximum rows of the table `names`. Beyond it, new names are recorded as `(others)`."""
_MAX_CACHED = 50_000
_MAX_CACHED_LETTERS = 8 * 2**20


class StringIds:
    """Replaces repeated strings by their ids in the table `names`. Methods may raise JournalFailed."""

    def __init__(self, database: JournalDatabase) -> None:
        self._database = database
        self._numbers: dict[str, int] = {}
        self._shapes: dict[int, tuple[tuple[str, ...], int | None]] = {}
        self._shape_texts: dict[tuple[int | None, tuple[str, ...]], str] = {}
        self._cached_letters = 0
        self._count: int | None = None
        self._count_after_prune = 0
        self._deleted_records = 0

    def id_of(self, text: str) -> int:
        name = text[:_MAX_LENGTH].encode("utf-8", "replace").decode()
        number = self._id(name)
        return self._insert(OTHERS) if number is None else number

    def shape_id(self, regions: Regions) -> int | None:
        """Return the id of the region names and of the question's index, which many requests have in common.

        Return None if the names exceed `MAX_SHAPE`, or the table `MAX_NAMES`.
        """
        key = regions.question, regions.names
        shape = self._shape_texts.get(key)
        if shape is None:
            shape = json.dumps([regions.question, *regions.names])
            if len(shape) > MAX_SHAPE:
                return None
            self._make_room(len(shape))
            self._shape_texts[key] = shape
        return self._id(shape)

    def _id(self, text: str) -> int | None:
        if text not in self._numbers:
            if (number := self._find(text)) is None:
                if self._num_names() >= MAX_NAMES:
                    return None
                number = self._insert(text)
            self._make_room(len(text))
            self._numbers[text] = number
        return self._numbers[text]

    def _find(self, text: str) -> int | None:
        rows = self._database.rows("select number from names where name = ?", [text])
        return int(rows[0][0]) if rows else None

    def _insert(self, text: str) -> int:
        self._database.execute("insert into names (name) values (?) on conflict do nothing", [text])
        self._count = self._num_names() + 1
        number = self._find(text)
        assert number is not None
        return number

    def _num_names(self) -> int:
        if self._count is None:
            self._count = int(self._database.rows("select count(*) from names")[0][0])
        return self._count

    def _make_room(self, letters: int) -> None:
        self._cached_letters += letters
        num_cached = len(self._numbers) + len(self._shapes) + len(self._shape_texts)
        if num_cached >= _MAX_CACHED or self._cached_letters > _MAX_CACHED_LETTERS:
            self._numbers.clear()
            self._shapes.clear()
            self._shape_texts.clear()
            self._cached_letters = letters

    def prune(self, deleted_records: int) -> None:
        """Delete unused names if the table is more than half full, and names or deleted records were added since."""
        self._count = None
        self._deleted_records += deleted_records
        step = MAX_NAMES // 10
        # A full table does not grow, but its names become unused with their records.
        has_changed = self._num_names() > self._count_after_prune + step or self._deleted_records > step
        if self._num_names() > MAX_NAMES // 2 and has_changed:
            self._database.delete_unused_names()
            self.on_rollback()
            self._count_after_prune = self._num_names()
            self._deleted_records = 0

    def on_rollback(self) -> None:
        self._numbers.clear()
        self._shapes.clear()
        self._cached_letters = 0
        self._count = None

    def regions(self, digests: bytes, shape_id: int, sizes: bytes = b"") -> Regions:
        if shape_id not in self._shapes:
            ((name,),) = self._database.rows("select name from names where number = ?", [shape_id])
            self._make_room(len(name))
            question, *names = json.loads(name)
            self._shapes[shape_id] = tuple(names), question
        names, question = self._shapes[shape_id]
        parts = tuple(digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES))
        return Regions(names, parts, question, tuple(array("I", sizes)))


def unused_names_condition(stored: Sequence[str]) -> str:
    """Return the SQL condition that nothing refers to a row of `names`. `stored` is `JournalDatabase.stored`."""
    columns = [f"select {name} from records where {name} is not null" for name in STRINGS if name in stored]
    columns += [f"select {name} from turns where {name} is not null" for name in TURN_STRINGS]
    columns.append("select shape from prompts where shape is not null")
    return f"number not in ({' union '.join(columns)})"


def stored_column(field: str) -> str:
    return {"request_id": "request"}.get(field, f"{field.removesuffix('_ms')}_us" if field.endswith("_ms") else field)


def _column_sql(name: str) -> str:
    source = f"p.{name}" if name in OF_PROMPT else f"r.{stored_column(name)}"
    if name in STRINGS:
        return f"(select name from names where number = {source}) as {name}"
    if name in _DIGESTS:
        return f"case typeof({source}) when 'blob' then lower(hex({source})) else {source} end as {name}"
    return f"{source} / 1000.0 as {name}" if name.endswith("_ms") else f"{source} as {name}"


COLUMNS = tuple(field.name for field in fields(Record))
_FORMS = {
    **dict.fromkeys(STRINGS, "string"),
    **dict.fromkeys(_DIGESTS, "digest"),
    **{name: "time" for name in COLUMNS if name.endswith("_ms")},
    "tags": "string or nothing",
}
"""Form in which the table has a field; other fields are stored as they are."""


def stored_fields(columns: Iterable[str]) -> list[str]:
    return [name for name in columns if name not in OF_PROMPT]


def view_sql() -> str:
    columns = ", ".join(_column_sql(name) for name in COLUMNS if name != "proxy")
    return f"create view requests as select {columns} from records r left join prompts p on p.number = r.prompt"


def record_row(record: Record, database: JournalDatabase, strings: StringIds) -> list[object]:
    fields_of, forms = _readers(tuple(database.stored))
    row = list(fields_of(record))
    for place, form in forms:
        value = row[place]
        if value is None:
            continue
        if form == "time":
            row[place] = round(value * 1000)
        elif form == "digest":
            row[place] = database.stored_id(value)
        else:
            row[place] = strings.id_of(value) if value or form == "string" else None
    return row


@lru_cache(maxsize=4)
def _readers(stored: tuple[str, ...]) -> tuple[Callable[[Record], tuple[Any, ...]], list[tuple[int, str]]]:
    """Return a function that reads the stored fields, and the place and form of each that the table has in another form."""
    return attrgetter(*stored), [(place, _FORMS[name]) for place, name in enumerate(stored) if name in _FORMS]


def short_key(key: str) -> bytes:
    """Return the first 16 bytes of an exact key. An imported key that is not hexadecimal is hashed first."""
    try:
        return bytes.fromhex(key[: 2 * _KEY_BYTES])
    except ValueError:
        return hashlib.sha256(key.encode("utf-8", "replace")).digest()[:_KEY_BYTES]


def entry_blob(id: str) -> bytes | str:
    """Return the id of a stored response as bytes to save space. An imported id that is not hexadecimal stays text."""
    try:
        return bytes.fromhex(id) if len(id) == _ID_DIGITS else id
    except ValueError:
        return id
