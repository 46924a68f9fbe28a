"""Writes exact hits, hundreds with one statement.

SQLite makes the rows of a statement by itself, without Python's lock: the thread that answers goes on meanwhile. A statement
for each hit would hand that lock over and back thousands of times a second.
"""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kvproxy.journal.finished import LONGEST_ID, client_of
from kvproxy.journal.hits import VALUES, Equal
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
_SIZES = (512, 64, 8, 1)
"""Hits in one statement: few sizes, so that SQLite has each at hand."""


def _statement(hits: int) -> str:
    """Makes records of so many hits, each given by its number, that of what equal ones share, its time and request id, and the
    seconds until it was found and answered."""
    values = ", ".join([f"({', '.join('?' * VALUES)})"] * hits)
    looked, took = (f"cast(h.column{column} * 1000000 as integer)" for column in (5, 6))
    return (
        "insert into records (number, time, request, exact_us, first_us, total_us, tenant, client, model, api, tags, layer,"
        " reason, prompt, entry, prompt_tokens, completion_tokens, status)"
        f" select h.column1, h.column3, substr(h.column4, 1, {LONGEST_ID}), {looked}, {took}, {took}, e.tenant,"
        " e.client, e.model, e.api, e.tags, e.layer, e.reason, e.prompt, e.entry, e.prompt_tokens, e.completion_tokens,"
        f" {_STATUS} from (values {values}) h join temp.equals e on e.number = h.column2"
    )


def _parts(values: list[Any]) -> Iterator[tuple[int, list[Any]]]:
    """Values of hits in parts for one statement each: how many hits, and their values."""
    done, left = 0, len(values) // VALUES
    for size in _SIZES:
        while left >= size:
            yield size, values[done : done + size * VALUES]
            done, left = done + size * VALUES, left - size


@dataclass(slots=True)
class _Tally:
    """Hits of equal requests on one day, in one batch.

    Attributes:
        equal: what they share, and its number.
        prompt: what they asked, where that is known.
        last: number of the last of them.
        seconds: until each was answered.
    """

    equal: Equal
    number: int
    prompt: Prompt | None
    last: int
    seconds: list[float] = field(default_factory=list)

    def saved(self) -> float:
        """Seconds that the hits saved in sum."""
        took = (self.prompt.seconds if self.prompt is not None else None) or 0.0
        return sum([took - seconds for seconds in self.seconds if seconds < took])


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

    def write(self, values: list[Any], totals: Totals) -> None:
        """Write records of hits, and count them.

        Args:
            values: of all hits, as `Hits` has them, with their numbers; the list is changed.
            totals: what they are added to.
        """
        if not values:
            return
        if len(self._numbers) >= _MOST:
            self.forget()
        if not self._numbers:
            self._connection.execute("delete from temp.equals")
        times = values[2::VALUES]
        day = times[0] // _DAY
        if min(times) // _DAY == max(times) // _DAY:
            self._write(day * _DAY, values, totals)
            return
        for here in (True, False):
            some = [place for place, time in enumerate(times) if (time // _DAY == day) is here]
            self.write([each for place in some for each in values[place * VALUES : (place + 1) * VALUES]], totals)

    def _write(self, day: float, values: list[Any], totals: Totals) -> None:
        """Write hits of one day, which is told by its first second."""
        equals, seconds = values[1::VALUES], values[5::VALUES]
        # Equal requests share one tuple, and its address is at hand sooner than its hash.
        kinds = list(map(id, equals))
        last = dict(zip(kinds, values[::VALUES], strict=True))
        tallies = {
            kind: _Tally(equal, *self._number(equal), last[kind])
            for kind, equal in dict(zip(kinds, equals, strict=True)).items()
        }
        for kind, each in zip(kinds, seconds, strict=True):
            tallies[kind].seconds.append(each)
        values[1::VALUES] = [tallies[kind].number for kind in kinds]
        for size, part in _parts(values):
            self._connection.execute(self._statements[size], part)
        for tally in tallies.values():
            _count(totals, day, tally)
        self._past.asked((each.last, each.prompt.number) for each in tallies.values() if each.prompt is not None)

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


def _count(totals: Totals, day: float, tally: _Tally) -> None:
    """Add hits to the totals, under each of their tags too."""
    _, tenant, model, _, tags, _, prompt_tokens, completion_tokens = tally.equal
    requests, seconds, saved = len(tally.seconds), sum(tally.seconds), tally.saved()
    for tag in (ALL, *tags):
        total = totals.of(day, tenant, model, "exact", tag)
        total.requests += requests
        total.prompt_tokens += requests * prompt_tokens
        total.completion_tokens += requests * completion_tokens
        total.first_seconds += seconds
        total.seconds += seconds
        total.saved_seconds += saved
