"""Writes exact hits, thousands at a time: numpy finds what they come to, and few statements insert their rows."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvproxy.journal.finished import LONGEST_ID, client_of
from kvproxy.journal.hits import ID_BYTES, PACKED, Equal, Hits, Kind
from kvproxy.journal.inserts import Insert
from kvproxy.journal.past import Past, Prompt
from kvproxy.journal.rows import blob_of
from kvproxy.journal.totals import ALL, Totals
from kvproxy.journal.words import Words

_STATUS = 200
_DAY = 86_400.0
_MICRO = 1e6
_EQUALS = "number, last, tenant, client, model, api, tags, layer, reason, status, prompt, entry, prompt_tokens, completion_tokens"
_RECORDS = "number, equal, time, request, exact_us, total_us"

Packed: TypeAlias = NDArray[np.void]
Numbers: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Tally:
    """Hits of equal requests on one day, in one transaction.

    Attributes:
        equal: what they share.
        prompt: what they asked, where that is known.
        first, last: numbers of the first and the last of them.
        requests: how many they are.
        seconds: until they were answered, in sum.
        saved: seconds that they saved in sum.
    """

    equal: Equal
    prompt: Prompt | None
    first: int
    last: int
    requests: int
    seconds: float
    saved: float


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
        self._records = Insert(connection, "records", _RECORDS, 2048)
        self._equals = Insert(connection, "equals", _EQUALS, 256)
        self._words = words
        self._past = past
        self._prompt_of = prompt_of

    def write(self, numbers: Sequence[int], hits: Sequence[Hits], totals: Totals) -> None:
        """Write records of hits in the transaction under way, and count them.

        Args:
            numbers: of the records.
            hits: as many.
            totals: what they are added to.
        """
        if not hits:
            return
        packed = unpacked(b"".join([each.packed for each in hits]))
        kinds, of_records = hits[-1].kinds, np.array(numbers, np.int64)
        days = packed["time"] // _DAY
        tallies: list[_Tally] = []
        for day in np.unique(days).tolist():
            here = days == day
            some = self._write(of_records[here], packed[here], kinds)
            for tally in some:
                _count(totals, day * _DAY, tally)
            tallies += some
        self._equals.write([value for tally in tallies for value in self._row(tally)])
        self._past.asked((each.last, each.prompt.number) for each in tallies if each.prompt is not None)

    def _write(self, numbers: Numbers, packed: Packed, kinds: Mapping[int, Kind]) -> list[_Tally]:
        """Write the records of hits of one day, and tell what these come to."""
        found, places = np.unique(packed["kind"], return_inverse=True)
        groups: dict[Equal, int] = {}
        of_kinds = [groups.setdefault(kinds[kind].equal, len(groups)) for kind in found.tolist()]
        group = np.array(of_kinds)[places]
        firsts, lasts = np.empty(len(groups), np.int64), np.empty(len(groups), np.int64)
        firsts[group[::-1]] = numbers[::-1]
        lasts[group] = numbers
        for start in range(0, len(packed), self._records.most):
            part = slice(start, start + self._records.most)
            self._insert(numbers[part], firsts[group[part]], packed[part], kinds)
        prompts = [self._prompt_of(equal[0]) for equal in groups]
        took = np.array([(prompt.seconds if prompt is not None else None) or 0.0 for prompt in prompts])
        requests, seconds = np.bincount(group), np.bincount(group, packed["answered"])
        saved = np.bincount(group, np.maximum(took[group] - packed["answered"], 0.0))
        columns = [each.tolist() for each in (firsts, lasts, requests, seconds, saved)]
        return [_Tally(*values) for values in zip(groups, prompts, *columns, strict=True)]

    def _insert(self, numbers: Numbers, firsts: Numbers, packed: Packed, kinds: Mapping[int, Kind]) -> None:
        micros = [(packed[column] * _MICRO).astype(np.int64).tolist() for column in ("found", "answered")]
        columns = (numbers.tolist(), firsts.tolist(), packed["time"].tolist(), _ids(packed, kinds), *micros)
        rows: list[Any] = [None] * (len(packed) * self._records.width)
        for place, column in enumerate(columns):
            rows[place :: self._records.width] = column
        self._records.write(rows)

    def _row(self, tally: _Tally) -> tuple[object, ...]:
        _, tenant, model, api, tags, entry, prompt_tokens, completion_tokens = tally.equal
        words = (tenant, client_of(tenant), model, api, ",".join(tags) or None, "exact", "hit-exact")
        prompt = None if tally.prompt is None else tally.prompt.number
        numbers = (tally.first, tally.last, *map(self._words.number, words), _STATUS, prompt)
        return *numbers, blob_of(entry), prompt_tokens, completion_tokens


def unpacked(packed: bytes) -> Packed:
    """Hits as an array, with a field for each of their values."""
    fields = [("time", "<f8"), ("found", "<f8"), ("answered", "<f8"), ("kind", "<u8"), ("length", "u1")]
    array: Packed = np.frombuffer(packed, [*fields, ("id", "u1", (ID_BYTES - 1,))])
    assert array.itemsize == PACKED.size
    return array


def _ids(packed: Packed, kinds: Mapping[int, Kind]) -> list[str]:
    """The request ids of hits."""
    lengths = packed["length"]
    length = int(lengths[0])
    if length and (lengths == length).all():
        # As when all are made here.
        text = packed["id"][:, :length].tobytes().decode("latin-1")
        return [text[start : start + length] for start in range(0, len(text), length)]
    text = packed["id"].tobytes().decode("latin-1")
    starts = range(0, len(text), ID_BYTES - 1)
    ids = [text[start : start + length] for start, length in zip(starts, lengths.tolist(), strict=True)]
    for place in np.flatnonzero(lengths == 0).tolist():
        ids[place] = (kinds[int(packed["kind"][place])].request_id or "")[:LONGEST_ID]
    return ids


def _count(totals: Totals, day: float, tally: _Tally) -> None:
    """Add hits to the totals, under each of their tags too."""
    _, tenant, model, _, tags, _, prompt_tokens, completion_tokens = tally.equal
    for tag in (ALL, *tags):
        total = totals.of(day, tenant, model, "exact", tag)
        total.requests += tally.requests
        total.prompt_tokens += tally.requests * prompt_tokens
        total.completion_tokens += tally.requests * completion_tokens
        total.first_seconds += tally.seconds
        total.seconds += tally.seconds
        total.saved_seconds += tally.saved
