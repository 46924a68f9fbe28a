"""What was asked before: tells why a request that nothing stored answered was not answered."""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from kvproxy.index.store import Why
from kvproxy.journal.regions import SIZE, Regions
from kvproxy.journal.rows import blob_of, short_key
from kvproxy.journal.words import Words

_CANDIDATES = 50
"""Earlier requests with the same question that are compared."""
_MOST_CHANGES = 2
"""Where more regions differ it is another conversation, in which the same was said."""
_MOST_TOMBSTONES = 100_000
_SLACK = 1.0  # Seconds between the moment at which an entry was made and the one at which its record was.


@dataclass(frozen=True, slots=True)
class Kept:
    """An entry that was stored: its key, its id, when it expires, when it was stored, and the id of its request."""

    key: str
    id: str
    expires: float
    time: float
    request: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    """An entry that is no longer stored: its key, why, and since when."""

    key: str
    why: Why | None
    time: float


@dataclass(frozen=True, slots=True)
class Prompt:
    """An exact key that was asked for before.

    Attributes:
        number: its place in the table of prompts.
        entry: id of the entry that was stored last, and when that one expires; None where none was.
        seconds: how long its answer took when it was computed.
    """

    number: int
    entry: str | None
    expires: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Change:
    """What differs from an earlier request with the same question.

    Attributes:
        regions: their names, the first one first.
        against: number of the earlier prompt.
    """

    regions: tuple[str, ...]
    against: int


class Past:
    """Prompts and tombstones in the journal's file. Every method may raise sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection, words: Words) -> None:
        self._connection = connection
        self._words = words

    def prompt(self, key: bytes) -> Prompt | None:
        """The prompt with a key."""
        sql = "select number, entry, expires, seconds from prompts where key = ?"
        row = self._connection.execute(sql, [key]).fetchone()
        return None if row is None else Prompt(*row)

    def add(self, key: bytes, regions: Regions | None, text: str | None, whole: bytes | None) -> int:
        """Keep a prompt that is not there yet; its number."""
        asks = blob = shape = None
        if regions is not None:
            asks, blob, shape = regions.asks, b"".join(regions.digests), self._words.shape(regions)
        sql = "insert into prompts (key, question, regions, shape, text, whole) values (?, ?, ?, ?, ?, ?)"
        return int(self._connection.execute(sql, [key, asks, blob, shape, text, whole]).lastrowid or 0)

    def took(self, prompt: int, seconds: float) -> None:
        """The answer to a prompt was computed, in so many seconds."""
        self._connection.execute("update prompts set seconds = ? where number = ?", [seconds, prompt])

    def stored(self, kept: Kept) -> None:
        """An answer is stored; nothing happens where its prompt is not known as yet."""
        key = short_key(kept.key)
        # It may have gone since.
        self._connection.execute("delete from tombstones where key = ? and time <= ?", [key, kept.time])
        sql = "update prompts set entry = ?, expires = ? where key = ?"
        self._connection.execute(sql, [kept.id, kept.expires, key])

    def name_entry(self, kept: Kept) -> None:
        """Tell the record of the request that made an entry of it, where that was over before the entry was stored."""
        sql = (
            "update records set entry = ? where entry is null and equal is null and request = ?"
            " and number = (select last from prompts where key = ?)"
        )
        self._connection.execute(sql, [blob_of(kept.id), kept.request, short_key(kept.key)])

    def asked(self, prompts: Iterable[tuple[int, int]]) -> None:
        """Numbers of records in which prompts were asked, and of these prompts; the last number of a prompt is kept."""
        self._connection.executemany("update prompts set last = max(coalesce(last, 0), ?) where number = ?", prompts)

    def bury(self, gone: Gone) -> None:
        """An entry is no longer stored."""
        sql = "insert or replace into tombstones (key, why, time) values (?, ?, ?)"
        self._connection.execute(sql, [short_key(gone.key), gone.why, gone.time])

    def why_gone(self, key: bytes, known: Prompt | None, now: float) -> tuple[str, float | None] | None:
        """Why the answer to an equal request is no longer there, and since when; None where none was stored."""
        sql = "select why, time from tombstones where key = ? and time <= ?"
        row = self._connection.execute(sql, [key, now + _SLACK]).fetchone()
        if row is not None:
            expired = row[0] == "expired" and known is not None and known.expires is not None
            # One that was marked as expired had more time when it was stored.
            return str(row[0]), min(known.expires, row[1]) if known is not None and expired else float(row[1])
        if known is None or known.entry is None:
            return None
        # Housekeeping may not have come by yet; and what another process removed is not told here.
        over = known.expires is not None and known.expires <= now + _SLACK
        return ("expired", known.expires) if over else ("removed", None)

    def change(self, key: bytes, regions: Regions) -> Change | None:
        """How a request differs from the one most like it among those with the same question."""
        if regions.asks is None:
            return None
        sql = "select number, regions, shape from prompts where question = ? and key <> ? order by number desc limit ?"
        best: Change | None = None
        for number, blob, shape in self._connection.execute(sql, [regions.asks, key, _CANDIDATES]).fetchall():
            changed = regions.differing(self.regions(blob, shape))
            if 0 < len(changed) <= _MOST_CHANGES and (best is None or len(changed) < len(best.regions)):
                best = Change(tuple(changed), number)
        return best

    def regions(self, blob: bytes, shape: int) -> Regions:
        """Regions as they were kept."""
        names, question = self._words.names(shape)
        return Regions(names, tuple(blob[start : start + SIZE] for start in range(0, len(blob), SIZE)), question)

    def forget(self) -> None:
        """Let the oldest tombstones go."""
        self._connection.execute(
            "delete from tombstones where time < (select time from tombstones order by time desc limit 1 offset ?)",
            [_MOST_TOMBSTONES],
        )
