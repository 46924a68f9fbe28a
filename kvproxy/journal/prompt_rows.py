"""The prompts that one transaction has to do with, held in memory: read by few statements, changed here, written by few.

An answer is stored a moment after its request is over, so most prompts are needed by the next transactions again. They are kept
here until another connection writes into the file: each row that is read costs a turn of Python's lock.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from kvproxy.index.many import insert_many, run_many, select_each

_SELECT = "select key, number, entry, expires, seconds, last from prompts where key in (?)"
_ALIKE = "select question, number, key, regions, shape from prompts where question = ? order by number desc limit {}"
_INSERT = "insert into prompts (key, number, entry, expires, seconds, last, question, regions, shape, text, whole)"
_CHANGE = "insert into prompts (key, number, entry, expires, seconds, last)"
_CHANGED = (
    " on conflict (number) do update set entry = excluded.entry, expires = excluded.expires, seconds = excluded.seconds,"
    " last = excluded.last"
)
_KEPT = 4_096
"""Prompts of earlier transactions that are kept."""
_ASKED = "update prompts set last = max(coalesce(last, 0), ?) where number = ?"


@dataclass(frozen=True, slots=True)
class Said:
    """What is kept of a prompt beside its key.

    Attributes:
        question: digest of what it asks.
        regions, shape: their digests, one after the other, and the number of their names.
        text, whole: the beginning of the question, and all of the request, where these are kept.
    """

    question: bytes | None = None
    regions: bytes | None = None
    shape: int | None = None
    text: str | None = None
    whole: bytes | None = None


@dataclass(slots=True)
class PromptRow:
    """A prompt; see `past.Prompt`. `last`: number of the last record in which it was asked. `new`: what is written of it."""

    key: bytes
    number: int
    entry: str | None = None
    expires: float | None = None
    seconds: float | None = None
    last: int | None = None
    new: Said | None = None
    changed: bool = False


@dataclass(frozen=True, slots=True)
class Alike:
    """A prompt with a question that is asked again."""

    number: int
    key: bytes
    regions: bytes
    shape: int


class PromptRows:
    """Rows of the table of prompts. Every method may raise sqlite3.Error.

    Args:
        connection: to the journal's file.
        most: prompts with the same question that are looked at.
    """

    def __init__(self, connection: sqlite3.Connection, most: int) -> None:
        self._connection = connection
        # One more, since the prompt itself may be among them.
        self._alike_sql = _ALIKE.format(most + 1)
        self._most = most
        self._rows: dict[bytes, PromptRow | None] = {}
        self._by_number: dict[int, PromptRow] = {}
        self._alike: dict[bytes, list[Alike]] = {}
        self._asked: dict[int, int] = {}
        self._next: int | None = None
        self._kept: dict[bytes, PromptRow | None] = {}
        self._kept_by_number: dict[int, PromptRow] = {}
        self._version: int | None = None

    def begin(self, keys: Iterable[bytes]) -> None:
        """Begin a transaction that has to do with some keys; others are read when they are asked for."""
        self._end()
        (version,) = self._connection.execute("pragma data_version").fetchone()
        if version != self._version:
            # Another connection has written into the file.
            self.forget()
            self._version = version
        self._read(list(keys))

    def _end(self) -> None:
        for held in (self._rows, self._by_number, self._alike, self._asked):
            held.clear()
        self._next = None

    def forget(self) -> None:
        """Forget what was read before: it is not so in the file."""
        self._kept.clear()
        self._kept_by_number.clear()

    def _read(self, keys: list[bytes]) -> None:
        unknown = [key for key in keys if key not in self._kept]
        self._rows.update({key: self._kept.get(key) for key in keys})
        self._rows.update({row[0]: PromptRow(*row) for row in run_many(self._connection, _SELECT, unknown)})
        found = [row for key in keys if (row := self._rows[key]) is not None]
        self._by_number.update({row.number: row for row in found})
        for row in found:
            # What was asked by its number alone is not in the file yet.
            if row.number in self._asked:
                self.asked(self._asked.pop(row.number), row.number)

    def get(self, key: bytes) -> PromptRow | None:
        """The prompt with a key."""
        if key not in self._rows:
            self._read([key])
        return self._rows[key]

    def add(self, key: bytes, said: Said) -> PromptRow:
        """Keep a prompt that is not there yet."""
        if self._next is None:
            (last,) = self._connection.execute("select coalesce(max(number), 0) from prompts").fetchone()
            self._next = int(last) + 1
        row = self._rows[key] = self._by_number[self._next] = PromptRow(key, self._next, new=said)
        self._next += 1
        self._put_before(row)
        return row

    def look_for(self, questions: Iterable[bytes]) -> None:
        """Read the prompts that ask some questions."""
        wanted = [question for question in dict.fromkeys(questions) if question not in self._alike]
        new = [row for row in self._by_number.values() if row.new is not None and row.new.question in set(wanted)]
        self._alike.update({question: [] for question in wanted})
        for question, *columns in select_each(self._connection, self._alike_sql, wanted):
            self._alike[question].append(Alike(*columns))
        # What was added since is not in the file yet.
        for row in new:
            self._put_before(row)

    def _put_before(self, row: PromptRow) -> None:
        """Put a prompt before those that ask the same and are there already, where these were read."""
        said = row.new
        if said is not None and said.question in self._alike and said.regions is not None and said.shape is not None:
            self._alike[said.question].insert(0, Alike(row.number, row.key, said.regions, said.shape))

    def alike(self, question: bytes, key: bytes) -> list[Alike]:
        """The last prompts that ask a question, but the one with a key; the newest first."""
        if question not in self._alike:
            self.look_for([question])
        return [each for each in self._alike[question] if each.key != key][: self._most]

    def asked(self, record: int, number: int) -> None:
        """A record asked the prompt with a number."""
        row = self._by_number.get(number)
        if row is None and (row := self._kept_by_number.get(number)) is not None:
            self._rows[row.key] = self._by_number[number] = row
        if row is None:
            self._asked[number] = max(record, self._asked.get(number, 0))
        else:
            row.last, row.changed = max(record, row.last or 0), True

    def write(self) -> None:
        """Write what is new and what has changed."""
        new, changed = list[tuple[object, ...]](), list[tuple[object, ...]]()
        for row in self._by_number.values():
            columns = (row.key, row.number, row.entry, row.expires, row.seconds, row.last)
            if (said := row.new) is not None:
                new.append((*columns, said.question, said.regions, said.shape, said.text, said.whole))
            elif row.changed:
                changed.append(columns)
        insert_many(self._connection, _INSERT, new)
        insert_many(self._connection, _CHANGE, changed, _CHANGED)
        self._connection.executemany(_ASKED, [(record, number) for number, record in self._asked.items()])
        self._keep()

    def _keep(self) -> None:
        """Keep what is in the file now, for the next transactions."""
        for row in self._by_number.values():
            row.new, row.changed = None, False
        if len(self._kept) + len(self._rows) > _KEPT:
            self.forget()
        self._kept.update(self._rows)
        self._kept_by_number.update(self._by_number)
        self._end()
