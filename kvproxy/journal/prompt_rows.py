"""Cached rows of the table `prompts`.

Most prompts are required again soon, because a response is stored shortly after its request ends. The cache is valid until
another connection writes to the file.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

_SELECT = "select key, number, entry, expires, seconds, last from prompts where key = ?"
_SAME_QUESTION = "select number, key, regions, shape from prompts where question = ? order by number desc limit {}"
_INSERT = "insert into prompts (key, number, entry, expires, seconds, last, question, regions, shape, text, whole)"
_INSERT += " values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_CHANGE = "update prompts set entry = ?, expires = ?, seconds = ?, last = ? where number = ?"
_MAX_CACHED = 4_096
_SET_LAST = "update prompts set last = max(coalesce(last, 0), ?) where number = ?"


@dataclass(frozen=True, slots=True)
class NewPrompt:
    """Columns that are written only once.

    Attributes:
        question: digest of the question.
        regions: concatenated digests.
        shape: id of the names of the regions.
        text, whole: the beginning of the question, and the compressed request, if the settings keep them.
    """

    question: bytes | None = None
    regions: bytes | None = None
    shape: int | None = None
    text: str | None = None
    whole: bytes | None = None


@dataclass(slots=True)
class PromptRow:
    """A row; see `history.PromptRecord`. `last`: number of its last record."""

    key: bytes
    number: int
    entry: str | None = None
    expires: float | None = None
    seconds: float | None = None
    last: int | None = None
    new: NewPrompt | None = None
    changed: bool = False


@dataclass(frozen=True, slots=True)
class SimilarPrompt:
    """A prompt with the same question as another one."""

    number: int
    key: bytes
    regions: bytes
    shape: int


class PromptRows:
    """The table `prompts`. Every method may raise sqlite3.Error.

    Args:
        connection: to the journal's file.
        limit: prompts with the same question to read.
    """

    def __init__(self, connection: sqlite3.Connection, limit: int) -> None:
        self._connection = connection
        # One more, since the prompt itself is among them.
        self._same_question_sql = _SAME_QUESTION.format(limit + 1)
        self._limit = limit
        self._rows: dict[bytes, PromptRow | None] = {}
        self._by_number: dict[int, PromptRow] = {}
        self._same_question: dict[bytes, list[SimilarPrompt]] = {}
        self._last_records: dict[int, int] = {}
        self._next: int | None = None
        self._cache: dict[bytes, PromptRow | None] = {}
        self._cache_by_number: dict[int, PromptRow] = {}
        self._version: int | None = None

    def begin(self, keys: Iterable[bytes]) -> None:
        """Begin a transaction, and read the rows of its keys. More rows are read on demand."""
        self._end()
        (version,) = self._connection.execute("pragma data_version").fetchone()
        if version != self._version:
            # Another connection wrote to the file.
            self.forget()
            self._version = version
        self._read(list(keys))

    def _end(self) -> None:
        for cache in (self._rows, self._by_number, self._same_question, self._last_records):
            cache.clear()
        self._next = None

    def forget(self) -> None:
        """Clear the cache."""
        self._cache.clear()
        self._cache_by_number.clear()

    def _read(self, keys: list[bytes]) -> None:
        unknown = [key for key in keys if key not in self._cache]
        self._rows.update({key: self._cache.get(key) for key in keys})
        for key in unknown:
            if (row := self._connection.execute(_SELECT, [key]).fetchone()) is not None:
                self._rows[key] = PromptRow(*row)
        found = [prompt for key in keys if (prompt := self._rows[key]) is not None]
        self._by_number.update({prompt.number: prompt for prompt in found})
        for prompt in found:
            if prompt.number in self._last_records:
                self.set_last_record(self._last_records.pop(prompt.number), prompt.number)

    def get(self, key: bytes) -> PromptRow | None:
        """The row of a key."""
        if key not in self._rows:
            self._read([key])
        return self._rows[key]

    def add(self, key: bytes, new: NewPrompt) -> PromptRow:
        """Insert a row."""
        if self._next is None:
            (last,) = self._connection.execute("select coalesce(max(number), 0) from prompts").fetchone()
            self._next = int(last) + 1
        row = self._rows[key] = self._by_number[self._next] = PromptRow(key, self._next, new=new)
        self._next += 1
        self._add_similar(row)
        return row

    def read_similar(self, questions: Iterable[bytes]) -> None:
        """Read the prompts with each of these questions."""
        wanted = [question for question in dict.fromkeys(questions) if question not in self._same_question]
        new = [row for row in self._by_number.values() if row.new is not None and row.new.question in set(wanted)]
        self._same_question.update({question: [] for question in wanted})
        for question in wanted:
            rows = self._connection.execute(self._same_question_sql, [question])
            self._same_question[question] += (SimilarPrompt(*row) for row in rows)
        # New rows are not in the file yet.
        for row in new:
            self._add_similar(row)

    def _add_similar(self, row: PromptRow) -> None:
        """Add a new row to the prompts with the same question, newest first."""
        new = row.new
        if (
            new is not None
            and new.question in self._same_question
            and new.regions is not None
            and new.shape is not None
        ):
            self._same_question[new.question].insert(0, SimilarPrompt(row.number, row.key, new.regions, new.shape))

    def same_question(self, question: bytes, key: bytes) -> list[SimilarPrompt]:
        """The last prompts with a question, newest first, without the one of a key."""
        if question not in self._same_question:
            self.read_similar([question])
        return [each for each in self._same_question[question] if each.key != key][: self._limit]

    def set_last_record(self, record: int, number: int) -> None:
        """Set the last record of a prompt."""
        row = self._by_number.get(number)
        if row is None and (row := self._cache_by_number.get(number)) is not None:
            self._rows[row.key] = self._by_number[number] = row
        if row is None:
            self._last_records[number] = max(record, self._last_records.get(number, 0))
        else:
            row.last, row.changed = max(record, row.last or 0), True

    def write(self) -> None:
        """Write new and changed rows."""
        new, changed = list[tuple[object, ...]](), list[tuple[object, ...]]()
        for row in self._by_number.values():
            columns = (row.entry, row.expires, row.seconds, row.last)
            if (data := row.new) is not None:
                texts = (data.question, data.regions, data.shape, data.text, data.whole)
                new.append((row.key, row.number, *columns, *texts))
            elif row.changed:
                changed.append((*columns, row.number))
        self._connection.executemany(_INSERT, new)
        self._connection.executemany(_CHANGE, changed)
        self._connection.executemany(_SET_LAST, [(record, number) for number, record in self._last_records.items()])
        self._update_cache()

    def _update_cache(self) -> None:
        """Cache the written rows for the next transactions."""
        for row in self._by_number.values():
            row.new, row.changed = None, False
        if len(self._cache) + len(self._rows) > _MAX_CACHED:
            self.forget()
        self._cache.update(self._rows)
        self._cache_by_number.update(self._by_number)
        self._end()
