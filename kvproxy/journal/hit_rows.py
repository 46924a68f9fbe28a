"""Writes exact hits, thousands at a time: numpy finds what they come to, and few statements insert their rows."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvproxy.index.many import insert_values
from kvproxy.journal.finished import LONGEST_ID, client_of
from kvproxy.journal.hits import ID_BYTES, PACKED, Equal, Hits
from kvproxy.journal.past import Past, Prompt
from kvproxy.journal.rows import blob_of
from kvproxy.journal.totals import ALL, Totals
from kvproxy.journal.words import Words

_STATUS = 200
_DAY = 86_400.0
_MICRO = 1e6
_EQUALS = "number, last, tenant, client, model, api, tags, layer, reason, status, prompt, entry, prompt_tokens, completion_tokens"
_RECORDS = "equal, time, request, exact_us, total_us"

_AT_ONCE = 2_000
"""Hits whose rows are made before they are inserted, by one statement where SQLite numbers them."""
_AT_ONCE_NUMBERED = 250
"""Rows of a statement that gives them their numbers."""
_BLOCK = 500
"""Hits of one array: beyond these, numpy hands Python's lock over and back with almost every operation."""
_FIELDS = [("time", "<f8"), ("found", "<f8"), ("answered", "<f8"), ("kind", "<u8"), ("length", "u1")]
_SIZE = PACKED.size
_ID = _SIZE - ID_BYTES + 1
"""Where in a packed hit its request id begins."""


@dataclass(slots=True)
class _Tally:
    """Hits of equal requests on one day, in one transaction.

    Attributes:
        equal: what they share.
        day: its first second.
        prompt: what they asked, where that is known.
        first, last: numbers of the first and the last of them.
        seconds: until each was answered.
    """

    equal: Equal
    day: float
    prompt: Prompt | None
    first: int
    last: int = 0
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

    def write(self, numbers: Sequence[int], hits: Sequence[Hits], totals: Totals, *, alone: bool) -> None:
        """Write records of hits in the transaction under way, and count them.

        Args:
            numbers: of the records.
            hits: as many.
            alone: whether no other records are written with them. SQLite gives them the same numbers then, for less.
            totals: what they are added to.
        """
        if not hits:
            return
        packed, kinds = b"".join([each.packed for each in hits]), hits[-1].kinds
        tallies: dict[tuple[Equal, float], _Tally] = {}
        names, most = (_RECORDS, _AT_ONCE) if alone else (f"{_RECORDS}, number", _AT_ONCE_NUMBERED)
        for start in range(0, len(numbers), _AT_ONCE):
            rows: list[Any] = []
            for block in range(start, min(start + _AT_ONCE, len(numbers)), _BLOCK):
                part = packed[block * _SIZE : (block + _BLOCK) * _SIZE]
                columns = self._columns(numbers[block : block + _BLOCK], Hits(part, kinds), tallies)
                rows += _in_rows(columns[: names.count(",") + 1])
            self._insert("records", names, rows, most)
        for tally in tallies.values():
            _count(totals, tally)
        self._insert(
            "equals", _EQUALS, [value for tally in tallies.values() for value in self._row(tally)], _AT_ONCE_NUMBERED
        )
        self._past.asked((each.last, each.prompt.number) for each in tallies.values() if each.prompt is not None)

    def _insert(self, table: str, columns: str, values: list[Any], most: int) -> None:
        """Insert rows into a table by few statements, the largest of them of so many rows."""
        # Half as many each time: so SQLite has every one of the few at hand, and no number of rows takes many.
        sizes = [most >> halves for halves in range(most.bit_length())]
        insert_values(self._connection, f"insert into {table} ({columns})", columns.count(",") + 1, values, sizes)

    def _columns(
        self, numbers: Sequence[int], hits: Hits, tallies: dict[tuple[Equal, float], _Tally]
    ) -> tuple[Sequence[object], ...]:
        """The values of some hundred hits by column, and the numbers of their records; they are added to their tallies."""
        values = np.frombuffer(hits.packed, [*_FIELDS, ("id", "V", ID_BYTES - 1)])
        times, answered, kinds = values["time"].tolist(), values["answered"].tolist(), values["kind"].tolist()
        day = times[0] // _DAY
        if min(times) // _DAY != max(times) // _DAY:
            return tuple(
                [value for column in columns for value in column]
                for columns in zip(
                    *(self._columns([number], hit, tallies) for number, hit in zip(numbers, hits, strict=True)),
                    strict=True,
                )
            )
        firsts, lasts = _ends(kinds, numbers)
        of_kinds: dict[int, _Tally] = {}
        for kind, first in firsts.items():
            equal = hits.kinds[kind].equal
            tally = tallies.get((equal, day))
            if tally is None:
                tally = tallies[equal, day] = _Tally(equal, day * _DAY, self._prompt_of(equal[0]), first)
            tally.first, tally.last = min(tally.first, first), max(tally.last, lasts[kind])
            of_kinds[kind] = tally
        if len(of_kinds) == 1:
            of_kinds[kinds[0]].seconds += answered
            equals = [of_kinds[kinds[0]].first] * len(kinds)
        else:
            for kind, seconds in zip(kinds, answered, strict=True):
                of_kinds[kind].seconds.append(seconds)
            equals = [of_kinds[kind].first for kind in kinds]
        micros = [(values[column] * _MICRO).astype(np.int64).tolist() for column in ("found", "answered")]
        return equals, times, _ids(hits, kinds, values["length"].tolist()), *micros, numbers

    def _row(self, tally: _Tally) -> tuple[object, ...]:
        _, tenant, model, api, tags, entry, prompt_tokens, completion_tokens = tally.equal
        words = (tenant, client_of(tenant), model, api, ",".join(tags) or None, "exact", "hit-exact")
        prompt = None if tally.prompt is None else tally.prompt.number
        numbers = (tally.first, tally.last, *map(self._words.number, words), _STATUS, prompt)
        return *numbers, blob_of(entry), prompt_tokens, completion_tokens


def _ends(kinds: list[int], numbers: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
    """The first and the last number of each kind."""
    if kinds.count(kinds[0]) == len(kinds):
        return {kinds[0]: numbers[0]}, {kinds[0]: numbers[-1]}
    return dict(zip(kinds[::-1], numbers[::-1], strict=True)), dict(zip(kinds, numbers, strict=True))


def _in_rows(columns: Sequence[Sequence[object]]) -> list[object]:
    """Values by row, where they were by column."""
    rows: list[object] = [None] * (len(columns) * len(columns[0]))
    for place, column in enumerate(columns):
        rows[place :: len(columns)] = column
    return rows


def _ids(hits: Hits, kinds: list[int], lengths: list[int]) -> list[str]:
    """The request ids of hits."""
    text = hits.packed.decode("latin-1")
    starts, length = range(_ID, len(text), _SIZE), lengths[0]
    if length and lengths.count(length) == len(lengths):
        return [text[start : start + length] for start in starts]
    return [
        text[start : start + length] if length else (hits.kinds[kind].request_id or "")[:LONGEST_ID]
        for start, length, kind in zip(starts, lengths, kinds, strict=True)
    ]


def _count(totals: Totals, tally: _Tally) -> None:
    """Add hits to the totals, under each of their tags too."""
    _, tenant, model, _, tags, _, prompt_tokens, completion_tokens = tally.equal
    requests, seconds, saved = len(tally.seconds), sum(tally.seconds), tally.saved()
    for tag in (ALL, *tags):
        total = totals.of(tally.day, tenant, model, "exact", tag)
        total.requests += requests
        total.prompt_tokens += requests * prompt_tokens
        total.completion_tokens += requests * completion_tokens
        total.first_seconds += seconds
        total.seconds += seconds
        total.saved_seconds += saved
