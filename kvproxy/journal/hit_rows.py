"""Writes exact hits, hundreds with one statement.

SQLite makes the rows of a statement by itself, without Python's lock: the thread that answers goes on meanwhile. A statement
for each hit would hand that lock over and back thousands of times a second.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence

from kvproxy.journal.finished import LONGEST_ID, client_of
from kvproxy.journal.hits import Equal, Hit
from kvproxy.journal.past import Past, Prompt
from kvproxy.journal.rows import blob_of
from kvproxy.journal.totals import ALL, Totals
from kvproxy.journal.words import Words

_MOST = 20_000
"""Kinds of equal requests that are held in memory."""
_STATUS = 200
_DAY = 86_400.0

_TABLE = (
    "create temp table equals (number integer primary key, tenant integer, client integer, model integer, api integer,"
    " tags integer, layer integer, reason integer, prompt integer, entry, prompt_tokens integer, completion_tokens integer)"
)
_EQUAL = f"insert into temp.equals values ({', '.join('?' * 12)})"
_VALUES = 6
"""Of a hit in a statement: number, number of what equal ones share, time, request id, microseconds until found and answered."""
_SIZES = (256, 16, 1)
"""Hits in one statement: few sizes, so that SQLite has each at hand."""


def _statement(hits: int) -> str:
    """Makes records of so many hits."""
    values = ", ".join(["(?, ?, ?, ?, ?, ?)"] * hits)
    return (
        "insert into records (number, time, request, exact_us, first_us, total_us, tenant, client, model, api, tags, layer,"
        " reason, prompt, entry, prompt_tokens, completion_tokens, status)"
        f" select h.column1, h.column3, substr(h.column4, 1, {LONGEST_ID}), h.column5, h.column6, h.column6, e.tenant,"
        " e.client, e.model, e.api, e.tags, e.layer, e.reason, e.prompt, e.entry, e.prompt_tokens, e.completion_tokens,"
        f" {_STATUS} from (values {values}) h join temp.equals e on e.number = h.column2"
    )


def _pieces(values: list[float | str]) -> Iterator[tuple[int, list[float | str]]]:
    """Values of hits, one after another, in parts of some sizes: the hits in each, and its values."""
    done, left = 0, len(values) // _VALUES
    for size in _SIZES:
        while left >= size:
            yield size, values[done : done + size * _VALUES]
            done, left = done + size * _VALUES, left - size


class _Tally:
    """Hits of equal requests on one day, in one batch: how many, their seconds, those that they saved, and the last one."""

    __slots__ = ("equal", "last", "number", "prompt", "requests", "saved", "seconds", "start", "took")

    def __init__(self, equal: Equal, number: int, prompt: Prompt | None, start: float) -> None:
        self.equal = equal
        self.number = number
        self.prompt = prompt
        self.took = (prompt.seconds or 0.0) if prompt is not None else 0.0
        self.start = start
        self.requests = self.last = 0
        self.seconds = self.saved = 0.0


class HitRows:
    """Writes exact hits. Every method may raise sqlite3.Error.

    Args:
        connection: to the journal's file, used by one thread at a time.
        words: numbers of words in that file.
        past: the prompts in that file.
        prompt_of: what is known of an exact key; None where that was forgotten.
    """

    def __init__(
        self, connection: sqlite3.Connection, words: Words, past: Past, prompt_of: Callable[[str], Prompt | None]
    ) -> None:
        self._connection = connection
        self._words = words
        self._past = past
        self._prompt_of = prompt_of
        self._numbers: dict[Equal, tuple[int, Prompt | None]] = {}
        self._last = 0
        self._statements = {size: _statement(size) for size in _SIZES}
        connection.execute("pragma temp_store=memory")
        connection.execute(_TABLE)

    def write(self, hits: Sequence[tuple[int, Hit]], totals: Totals) -> None:
        """Write records of hits, each with its number, and count them."""
        if not hits:
            return
        if len(self._numbers) >= _MOST:
            self.forget()
        if not self._numbers:
            self._connection.execute("delete from temp.equals")
        values: list[float | str] = []
        tallies: dict[Equal, _Tally] = {}
        done: list[_Tally] = []
        for number, (equal, time, request_id, looked, seconds) in hits:
            tally = tallies.get(equal)
            if tally is None or not 0.0 <= time - tally.start < _DAY:
                tally = tallies[equal] = _Tally(equal, *self._number(equal), time // _DAY * _DAY)
                done.append(tally)
            tally.requests += 1
            tally.seconds += seconds
            if tally.took > seconds:
                tally.saved += tally.took - seconds
            tally.last = number
            values += number, tally.number, time, request_id, int(looked * 1e6), int(seconds * 1e6)
        for size, part in _pieces(values):
            self._connection.execute(self._statements[size], part)
        for tally in done:
            _count(totals, tally)
        self._past.asked((each.last, each.prompt.number) for each in done if each.prompt is not None)

    def forget(self) -> None:
        """Start anew: what was learned in a transaction that was undone is not there."""
        self._numbers.clear()

    def _number(self, equal: Equal) -> tuple[int, Prompt | None]:
        """The number of a kind of equal requests, as long as what is known of their prompt is the same; and their prompt."""
        prompt = self._prompt_of(equal[0])
        known = self._numbers.get(equal)
        if known is None or known[1] != prompt:
            self._last += 1
            self._connection.execute(_EQUAL, self._row(equal, prompt))
            known = self._numbers[equal] = self._last, prompt
        return known

    def _row(self, equal: Equal, prompt: Prompt | None) -> tuple[object, ...]:
        _, tenant, model, api, tags, entry, prompt_tokens, completion_tokens = equal
        words = (tenant, client_of(tenant), model, api, ",".join(tags) or None, "exact", "hit-exact")
        at = None if prompt is None else prompt.number
        return self._last, *map(self._words.number, words), at, blob_of(entry), prompt_tokens, completion_tokens


def _count(totals: Totals, tally: _Tally) -> None:
    """Add hits to the totals, under each of their tags too."""
    _, tenant, model, _, tags, _, prompt_tokens, completion_tokens = tally.equal
    for tag in (ALL, *tags):
        total = totals.of(tally.start, tenant, model, "exact", tag)
        total.requests += tally.requests
        total.prompt_tokens += tally.requests * prompt_tokens
        total.completion_tokens += tally.requests * completion_tokens
        total.first_seconds += tally.seconds
        total.seconds += tally.seconds
        total.saved_seconds += tally.saved
