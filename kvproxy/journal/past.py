"""What was asked before: tells why a request that nothing stored answered was not answered."""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from kvproxy.index.store import Why
from kvproxy.journal.prompt_rows import PromptRows, Said
from kvproxy.journal.regions import SIZE, Regions
from kvproxy.journal.rows import short_key
from kvproxy.journal.tombstones import Tombstones
from kvproxy.journal.words import Words

_CANDIDATES = 50
"""Earlier requests with the same question that are compared."""
_MOST_CHANGES = 2
"""Where more regions differ it is another conversation, in which the same was said."""
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
    """Prompts and tombstones in the journal's file, a transaction at a time. Every method may raise sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection, words: Words) -> None:
        self._connection = connection
        self._words = words
        self._prompts = PromptRows(connection, _CANDIDATES)
        self._tombstones = Tombstones(connection)

    def begin(self, keys: Iterable[bytes]) -> None:
        """Begin a transaction, and read what is known of some keys at once."""
        keys = list(keys)
        self._prompts.begin(keys)
        self._tombstones.begin(keys)

    def write(self) -> None:
        """Write what the transaction has changed."""
        self._prompts.write()
        self._tombstones.write()

    def prompt(self, key: bytes) -> Prompt | None:
        """The prompt with a key."""
        row = self._prompts.get(key)
        return None if row is None else Prompt(row.number, row.entry, row.expires, row.seconds)

    def knows(self, key: bytes) -> bool:
        """Whether a prompt with a key is there."""
        return self._prompts.get(key) is not None

    def add(self, key: bytes, regions: Regions | None, text: str | None, whole: bytes | None) -> int:
        """Keep a prompt that is not there yet; its number."""
        if regions is None:
            return self._prompts.add(key, Said(text=text, whole=whole)).number
        said = Said(regions.asks, b"".join(regions.digests), self._words.shape(regions), text, whole)
        return self._prompts.add(key, said).number

    def took(self, key: bytes, seconds: float) -> None:
        """The answer to a prompt was computed, in so many seconds."""
        row = self._prompts.get(key)
        if row is not None:
            row.seconds, row.changed = seconds, True

    def stored(self, kept: Kept) -> None:
        """An answer is stored; nothing happens where its prompt is not known as yet."""
        key = short_key(kept.key)
        stone, row = self._tombstones.get(key), self._prompts.get(key)
        # It may have gone since.
        if stone is not None and stone[1] <= kept.time:
            self._tombstones.set(key, None)
        if row is not None:
            row.entry, row.expires, row.changed = kept.id, kept.expires, True

    def asked(self, prompts: Iterable[tuple[int, int]]) -> None:
        """Numbers of records in which prompts were asked, and of these prompts; the last number of a prompt is kept."""
        for record, prompt in prompts:
            self._prompts.asked(record, prompt)

    def bury(self, gone: Gone) -> None:
        """An entry is no longer stored."""
        self._tombstones.set(short_key(gone.key), (gone.why, gone.time))

    def why_gone(self, key: bytes, known: Prompt | None, now: float) -> tuple[str, float | None] | None:
        """Why the answer to an equal request is no longer there, and since when; None where none was stored."""
        stone = self._tombstones.get(key)
        if stone is not None and stone[1] <= now + _SLACK:
            why, since = stone
            if why == "expired" and known is not None and known.expires is not None:
                # One that was marked as expired had more time when it was stored.
                since = min(known.expires, since)
            return str(why), since
        if known is None or known.entry is None:
            return None
        # Housekeeping may not have come by yet; and what another process removed is not told here.
        over = known.expires is not None and known.expires <= now + _SLACK
        return ("expired", known.expires) if over else ("removed", None)

    def look_for(self, regions: Iterable[Regions]) -> None:
        """Read at once what `change` compares some requests with."""
        self._prompts.look_for(each.asks for each in regions if each.asks is not None)

    def change(self, key: bytes, regions: Regions) -> Change | None:
        """How a request differs from the one most like it among those with the same question."""
        if regions.asks is None:
            return None
        best: Change | None = None
        for each in self._prompts.alike(regions.asks, key):
            changed = regions.differing(self.regions(each.regions, each.shape))
            if 0 < len(changed) <= _MOST_CHANGES and (best is None or len(changed) < len(best.regions)):
                best = Change(tuple(changed), each.number)
        return best

    def regions(self, blob: bytes, shape: int) -> Regions:
        """Regions as they were kept."""
        names, question = self._words.names(shape)
        return Regions(names, tuple(blob[start : start + SIZE] for start in range(0, len(blob), SIZE)), question)

    def forget(self) -> None:
        """Forget what is held in memory: the file has it otherwise."""
        self._prompts.forget()

    def prune(self) -> None:
        """Let the oldest tombstones go."""
        self._tombstones.forget()
