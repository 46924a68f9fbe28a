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

_STATUS = 200
_DAY = 86_400.0

_EQUALS = (
    "insert into equals (number, last, tenant, client, model, api, tags, layer, reason, status, prompt, entry, prompt_tokens,"
    f" completion_tokens) values ({', '.join('?' * 14)})"
)
_COLUMNS = "number, equal, time, request, exact_us, total_us"
_VALUES = "(?, ?, ?, ?, cast(? * 1000000 as integer), cast(? * 1000000 as integer))"
_WIDTH = _VALUES.count("?")
_STATEMENTS = {
    hits: f"insert into records ({_COLUMNS}) values {', '.join([_VALUES] * hits)}" for hits in (512, 64, 8, 1)
}
"""By how many hits each writes: few sizes, so that SQLite has each at hand."""


def _parts(rows: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Rows in parts for one statement each: the statement, and its values."""
    done, left = 0, len(rows) // _WIDTH
    for size, statement in _STATEMENTS.items():
        while left >= size:
            yield statement, rows[done : done + size * _WIDTH]
            done, left = done + size * _WIDTH, left - size


@dataclass(slots=True)
class _Tally:
    """Hits of equal requests on one day, in one transaction.

    Attributes:
        equal: what they share.
        prompt: what they asked, where that is known.
        first, last: numbers of the first and the last of them.
        seconds: until each was answered.
    """

    equal: Equal
    prompt: Prompt | None
    first: int
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

    def write(self, numbers: list[int], values: list[Any], totals: Totals) -> None:
        """Write records of hits in the transaction under way, and count them.

        Args:
            numbers: of the records.
            values: of all hits, as `Hits` has them.
            totals: what they are added to.
        """
        if not numbers:
            return
        times = values[1::VALUES]
        day = times[0] // _DAY
        if min(times) // _DAY == max(times) // _DAY:
            self._write(day * _DAY, numbers, values, totals)
            return
        for here in (True, False):
            some = [place for place, time in enumerate(times) if (time // _DAY == day) is here]
            parts = [each for place in some for each in values[place * VALUES : (place + 1) * VALUES]]
            self.write([numbers[place] for place in some], parts, totals)

    def _write(self, day: float, numbers: list[int], values: list[Any], totals: Totals) -> None:
        """Write hits of one day, which is told by its first second."""
        kinds, tallies = self._tallies(numbers, values)
        rows: list[Any] = [None] * (len(numbers) * _WIDTH)
        rows[::_WIDTH] = numbers
        rows[1::_WIDTH] = [tallies[kind].first for kind in kinds]
        for column in range(1, VALUES):
            rows[column + 1 :: _WIDTH] = values[column::VALUES]
        rows[3::_WIDTH] = [request[:LONGEST_ID] for request in values[2::VALUES]]
        for statement, part in _parts(rows):
            self._connection.execute(statement, part)
        self._connection.executemany(_EQUALS, map(self._row, tallies.values()))
        for tally in tallies.values():
            _count(totals, day, tally)
        self._past.asked((each.last, each.prompt.number) for each in tallies.values() if each.prompt is not None)

    def _tallies(self, numbers: list[int], values: list[Any]) -> tuple[list[int], dict[int, _Tally]]:
        """The kind of each hit, and what the hits of each kind come to."""
        equals = values[::VALUES]
        # Equal requests mostly share one tuple, and its address is at hand sooner than its hash.
        places = list(map(id, equals))
        same: dict[Equal, int] = {}
        kind_of = {
            place: same.setdefault(equal, place) for place, equal in dict(zip(places, equals, strict=True)).items()
        }
        kinds = [kind_of[place] for place in places]
        first, last = dict(zip(kinds[::-1], numbers[::-1], strict=True)), dict(zip(kinds, numbers, strict=True))
        tallies = {
            kind: _Tally(equal, self._prompt_of(equal[0]), first[kind], last[kind]) for equal, kind in same.items()
        }
        for kind, seconds in zip(kinds, values[4::VALUES], strict=True):
            tallies[kind].seconds.append(seconds)
        return kinds, tallies

    def _row(self, tally: _Tally) -> tuple[object, ...]:
        _, tenant, model, api, tags, entry, prompt_tokens, completion_tokens = tally.equal
        words = (tenant, client_of(tenant), model, api, ",".join(tags) or None, "exact", "hit-exact")
        prompt = None if tally.prompt is None else tally.prompt.number
        numbers = (tally.first, tally.last, *map(self._words.number, words), _STATUS, prompt)
        return *numbers, blob_of(entry), prompt_tokens, completion_tokens


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
