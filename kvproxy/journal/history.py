"""Earlier prompts and removed entries, which explain misses and name changed regions."""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from kvproxy.index.store import RemovalReason
from kvproxy.journal.prompt_rows import NewPrompt, PromptRows
from kvproxy.journal.regions import SIZE, Regions
from kvproxy.journal.rows import short_key
from kvproxy.journal.string_ids import StringIds
from kvproxy.journal.tombstones import Tombstones

_MAX_COMPARED = 50
"""Earlier requests with the same question that are compared."""
_MAX_CHANGES = 2
"""With more differences it is another conversation with the same question."""
_SLACK = 1.0  # Seconds between the creation of an entry and of its record.


@dataclass(frozen=True, slots=True)
class ResponseStored:
    """An entry was stored. `time`: of the commit; `request`: the request id."""

    key: str
    id: str
    expires: float
    time: float
    request: str = ""


@dataclass(frozen=True, slots=True)
class ResponseRemoved:
    """An entry was removed."""

    key: str
    reason: RemovalReason | None
    time: float


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """The prompt of an exact key.

    Attributes:
        entry, expires: of the last stored response; None if no response was stored.
        seconds: duration of the last computed response.
    """

    number: int
    entry: str | None
    expires: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Change:
    """The regions in which a request differs from an earlier one, in order; `against`: number of the earlier prompt."""

    regions: tuple[str, ...]
    against: int


class History:
    """Earlier prompts and removed entries, one transaction at a time. Every method may raise sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection, strings: StringIds) -> None:
        self._connection = connection
        self._strings = strings
        self._prompts = PromptRows(connection, _MAX_COMPARED)
        self._tombstones = Tombstones(connection)

    def begin(self, keys: Iterable[bytes]) -> None:
        """Begin a transaction, and read the rows of its keys."""
        keys = list(keys)
        self._prompts.begin(keys)
        self._tombstones.begin(keys)

    def write(self) -> None:
        """Write the changes of the transaction."""
        self._prompts.write()
        self._tombstones.write()

    def prompt(self, key: bytes) -> PromptRecord | None:
        """The prompt with a key."""
        row = self._prompts.get(key)
        return None if row is None else PromptRecord(row.number, row.entry, row.expires, row.seconds)

    def add(self, key: bytes, regions: Regions | None, text: str | None, whole: bytes | None) -> int:
        """Insert a prompt, and return its number."""
        if regions is None:
            return self._prompts.add(key, NewPrompt(text=text, whole=whole)).number
        new = NewPrompt(regions.question_digest, b"".join(regions.digests), self._strings.shape(regions), text, whole)
        return self._prompts.add(key, new).number

    def set_seconds(self, key: bytes, seconds: float) -> None:
        """Set the duration of the computed response to a prompt."""
        row = self._prompts.get(key)
        if row is not None:
            row.seconds, row.changed = seconds, True

    def set_entry(self, stored: ResponseStored) -> None:
        """Set the stored response of a prompt, if the prompt exists."""
        key = short_key(stored.key)
        stone, row = self._tombstones.get(key), self._prompts.get(key)
        if stone is not None and stone[1] <= stored.time:
            self._tombstones.set(key, None)
        if row is not None:
            row.entry, row.expires, row.changed = stored.id, stored.expires, True

    def set_last_records(self, prompts: Iterable[tuple[int, int]]) -> None:
        """Set the last record of each prompt; pairs of a record's and a prompt's number."""
        for record, prompt in prompts:
            self._prompts.set_last_record(record, prompt)

    def add_removal(self, removal: ResponseRemoved) -> None:
        """Add a tombstone for a removed entry."""
        self._tombstones.set(short_key(removal.key), (removal.reason, removal.time))

    def removal(self, key: bytes, known: PromptRecord | None, now: float) -> tuple[str, float | None] | None:
        """Reason and time of the removal of an entry; None if there was no entry."""
        stone = self._tombstones.get(key)
        if stone is not None and stone[1] <= now + _SLACK:
            why, since = stone
            if why == "expired" and known is not None and known.expires is not None:
                # An entry that was expired by hand had a later time.
                since = min(known.expires, since)
            return str(why), since
        if known is None or known.entry is None:
            return None
        # Housekeeping runs later, and removals by another process are not reported.
        is_expired = known.expires is not None and known.expires <= now + _SLACK
        return ("expired", known.expires) if is_expired else ("removed", None)

    def read_similar(self, regions: Iterable[Regions]) -> None:
        """Read the prompts that `change` compares requests with."""
        self._prompts.read_similar(each.question_digest for each in regions if each.question_digest is not None)

    def change(self, key: bytes, regions: Regions) -> Change | None:
        """Compare a request with the most similar one that has the same question."""
        if regions.question_digest is None:
            return None
        best: Change | None = None
        for each in self._prompts.same_question(regions.question_digest, key):
            changed = regions.differing(self.regions(each.regions, each.shape))
            if 0 < len(changed) <= _MAX_CHANGES and (best is None or len(changed) < len(best.regions)):
                best = Change(tuple(changed), each.number)
        return best

    def regions(self, blob: bytes, shape: int) -> Regions:
        """Decode stored regions."""
        names, question = self._strings.names(shape)
        return Regions(names, tuple(blob[start : start + SIZE] for start in range(0, len(blob), SIZE)), question)

    def forget(self) -> None:
        """Clear the cache after a rollback."""
        self._prompts.forget()

    def prune(self) -> None:
        """Delete the oldest tombstones."""
        self._tombstones.prune()
