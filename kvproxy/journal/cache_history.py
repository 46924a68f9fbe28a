"""Records the prompts of each exact key, and why its response was removed."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from kvproxy.exchange import Exchange
from kvproxy.index.store import RemovalReason
from kvproxy.journal.databases.database import JournalDatabase
from kvproxy.journal.request_regions import PASSAGES, Regions
from kvproxy.journal.schema import StringIds, short_key

_MAX_COMPARED = 50
_MAX_CHANGES = 2  # Requests that differ in more regions belong to different conversations.
_MAX_TOMBSTONES = 100_000
_MAX_CACHED_PROMPTS = 4_096
_MAX_CACHED_REGIONS = 250_000
_FIND = "select key, number, entry, expires, seconds from prompts where key in ({})"
_FIND_TOMBSTONES = "select key, reason, time from tombstones where key in ({})"
_MAX_FOUND = 256  # Keys of one query.
_COLUMNS = ("key", "question", "regions", "shape", "entry", "expires", "seconds", "last", "text", "whole")

Tombstone: TypeAlias = tuple[str, float]
"""Reason, such as `expired`, and time (seconds since the epoch) of the removal of a stored response."""
_SLACK = 1.0  # Seconds between the creation of an entry and of its record.


@dataclass(frozen=True, slots=True)
class ResponseStored:
    """A response was stored under an exact `key`. Times are seconds since the epoch; `request` is the id of the request."""

    key: str
    id: str
    expires: float
    time: float
    request: str = ""


@dataclass(frozen=True, slots=True)
class ResponseRemoved:
    key: str
    reason: RemovalReason | None
    time: float


@dataclass(frozen=True, slots=True)
class KeepWarmEnded:
    """What became of the keep-warm requests after a request, such as `2 sent: the session continued`."""

    request: str
    text: str


@dataclass(frozen=True, slots=True)
class ComparisonEnded:
    """The verdict on the stored response that a request would have got: `equal`, `different`, or `undecided`."""

    request: str
    verdict: str


Change: TypeAlias = ResponseStored | ResponseRemoved | KeepWarmEnded | ComparisonEnded
Event: TypeAlias = Exchange | Change


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """A row of the table `prompts`: all requests with the same exact key.

    Attributes:
        entry, expires: id and expiry (seconds since the epoch) of the last stored response; None if no response was stored.
        seconds: shortest duration of a response of the backend; None without a response.
    """

    number: int
    entry: str | None = None
    expires: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RegionChange:
    """Names of the regions (see `Regions`) in which a request differs from an earlier prompt, and that prompt's number."""

    regions: tuple[str, ...]
    earlier_prompt: int


class CacheHistory:
    """Reads and writes the tables `prompts` and `tombstones` (removed responses) in the caller's transaction."""

    def __init__(self, database: JournalDatabase, strings: StringIds) -> None:
        self._database = database
        self._strings = strings
        self._regions: dict[int, Regions] = {}
        self._num_cached = 0
        self._found: dict[bytes, tuple[PromptRecord | None, Tombstone | None]] = {}
        """The rows of the batch's keys, with the changes of this batch."""
        self._sizes: list[tuple[int, bytes]] = []  # Rows of `prompt_sizes` that are not inserted yet.
        self._last_records: dict[int, int] = {}
        self._entries: dict[int, tuple[str, float]] = {}  # Stored responses by prompt that are not written yet.

    def begin_batch(self, keys: Iterable[bytes]) -> None:
        """Read the rows of the `short_key`s of a batch at once, for `find`."""
        self._found = dict.fromkeys(keys, (None, None))
        missing = list(self._found)
        for start in range(0, len(missing), _MAX_FOUND):
            self._read(missing[start : start + _MAX_FOUND])

    def _read(self, keys: Sequence[bytes]) -> None:
        # Powers of two bound the number of prepared statements.
        padded = [*keys, *[keys[-1]] * ((1 << (len(keys) - 1).bit_length()) - len(keys))]
        marks = ", ".join("?" * len(padded))
        for key, *values in self._database.rows(_FIND.format(marks), padded):
            self._found[key] = PromptRecord(*values), None
        for key, reason, time in self._database.rows(_FIND_TOMBSTONES.format(marks), padded):
            self._found[key] = self._found[key][0], (reason, time)

    def end_batch(self) -> None:
        """Write the last records and the stored responses of the prompts since `begin_batch`."""
        self._insert_sizes()
        self._database.executemany(
            "update prompts set entry = ?, expires = ? where number = ?",
            [(entry, expires, prompt) for prompt, (entry, expires) in self._entries.items()],
        )
        self._entries.clear()
        sql = "update prompts set last = ? where number = ?"
        self._database.executemany(sql, [(record, prompt) for prompt, record in self._last_records.items()])
        self._last_records.clear()
        self._found.clear()

    def find(self, key: bytes) -> tuple[PromptRecord | None, Tombstone | None]:
        """Return the prompt of a `short_key`, and the last removal of its response."""
        if key not in self._found:
            self._found[key] = None, None
            self._read([key])
        return self._found[key]

    def regions(self, prompt_number: int) -> Regions | None:
        if prompt_number not in self._regions:
            self._insert_sizes()
            sql = (
                "select p.regions, p.shape, s.sizes from prompts p left join prompt_sizes s on s.prompt = p.number"
                " where p.number = ? and p.regions is not null"
            )
            if not (rows := self._database.rows(sql, [prompt_number])):
                return None
            ((digests, shape, sizes),) = rows
            self._cache_regions(prompt_number, self._strings.regions(digests, shape, sizes or b""))
        return self._regions[prompt_number]

    def _cache_regions(self, prompt_number: int, regions: Regions) -> None:
        self._num_cached += len(regions.names)
        if len(self._regions) >= _MAX_CACHED_PROMPTS or self._num_cached > _MAX_CACHED_REGIONS:
            self._regions.clear()
            self._num_cached = len(regions.names)
        self._regions[prompt_number] = regions

    def on_rollback(self) -> None:
        self._regions.clear()
        self._found.clear()
        self._sizes.clear()
        self._last_records.clear()
        self._entries.clear()

    def _insert_sizes(self) -> None:
        rows, self._sizes = self._sizes, []
        self._database.insert("prompt_sizes", ("prompt", "sizes"), rows)

    def add(
        self,
        key: bytes,
        regions: Regions,
        text: str | None,
        contents: bytes | None,
        stored: ResponseStored | None = None,
        seconds: float | None = None,
        record: int | None = None,
        beside: bytes | None = None,
    ) -> PromptRecord:
        """Insert a prompt, with its stored response, the seconds of its computation, and the number of its record.

        `text` is an excerpt of the question, and `contents` the compressed JSON of all regions; None does not store them.
        `beside` is the digest of a question beside passages; None for another prompt.
        No regions are stored if they have too many names (see `StringIds.shape_id`).
        """
        shape = self._strings.shape_id(regions)
        entry, expires = (None, None) if stored is None else (stored.id, stored.expires)
        own = (None, None) if shape is None else (beside or regions.question_digest, b"".join(regions.digests))
        values = [key, *own, shape, entry, expires, seconds, record, text, contents]
        # Python takes long to pass a null.
        used = [(name, value) for name, value in zip(_COLUMNS, values, strict=True) if value is not None]
        sql = _insert_sql(tuple([name for name, _ in used]))
        ((number,),) = self._database.rows(sql, [value for _, value in used])
        if shape is not None:
            sizes = array("I", [min(size, 2**32 - 1) for size in regions.sizes]).tobytes()
            self._sizes.append((number, sizes))
            self._cache_regions(number, regions)
        prompt = PromptRecord(int(number), entry, expires, seconds)
        self._found[key] = prompt, self.find(key)[1]
        return prompt

    def add_text(self, number: int, text: str) -> None:
        """Store an excerpt of the question of the prompt with this number, unless the prompt already has one."""
        self._database.execute("update prompts set text = ? where number = ? and text is null", [text, number])

    def add_matched_question(self, entry_id: str, text: str, record_number: int) -> None:
        """Store an excerpt of the matched question of a semantic hit, in a row whose key is the id of its entry."""
        sql = (
            "insert into prompts (key, text, last) values (?, ?, ?)"
            " on conflict (key) do update set text = excluded.text, last = excluded.last"
        )
        self._database.execute(sql, [short_key(entry_id), text, record_number])
        self._found.pop(short_key(entry_id), None)

    def set_seconds(self, key: bytes, seconds: float) -> None:
        self._database.execute("update prompts set seconds = ? where key = ?", [seconds, key])
        prompt, tombstone = self.find(key)
        if prompt is not None:
            self._found[key] = PromptRecord(prompt.number, prompt.entry, prompt.expires, seconds), tombstone

    def set_entry(self, stored: ResponseStored) -> None:
        """Set the stored response of its prompt, if the prompt is known; it is written at the end of the batch."""
        key = short_key(stored.key)
        prompt, tombstone = self.find(key)
        if prompt is not None:
            self._entries[prompt.number] = stored.id, stored.expires
            self._found[key] = PromptRecord(prompt.number, stored.id, stored.expires, prompt.seconds), tombstone

    def remove_tombstone(self, stored: ResponseStored) -> None:
        """Forget the removal of a response that was stored earlier than `stored`."""
        sql, key = "delete from tombstones where key = ? and time <= ?", short_key(stored.key)
        self._database.execute(sql, [key, stored.time])
        prompt, tombstone = self.find(key)
        if tombstone is not None and tombstone[1] <= stored.time:
            self._found[key] = prompt, None

    def set_last_record(self, prompt: int, record: int) -> None:
        """Set the last record of a prompt at the end of the batch."""
        self._last_records[prompt] = record

    def add_removal(self, removal: ResponseRemoved) -> None:
        sql = (
            "insert into tombstones (key, reason, time) values (?, ?, ?)"
            " on conflict (key) do update set reason = excluded.reason, time = excluded.time"
        )
        key = short_key(removal.key)
        prompt, _ = self.find(key)
        self._database.execute(sql, [key, removal.reason, removal.time])
        self._found[key] = prompt, (str(removal.reason), removal.time)

    @staticmethod
    def last_removal(
        prompt: PromptRecord | None, tombstone: Tombstone | None, now: float
    ) -> tuple[str, float | None] | None:
        """Return why and when a prompt's last response was removed, given the result of `find`; None if no response was removed.

        The time is None if it is unknown.
        """
        if tombstone is not None and tombstone[1] <= now + _SLACK:
            why, since = tombstone
            if why == "expired" and prompt is not None and prompt.expires is not None:
                # An entry that was expired by hand had a later time.
                since = min(prompt.expires, since)
            return str(why), since
        if prompt is None or prompt.entry is None:
            return None
        # Housekeeping runs later, and other processes do not report removals.
        is_expired = prompt.expires is not None and prompt.expires <= now + _SLACK
        return ("expired", prompt.expires) if is_expired else ("removed", None)

    def closest_change(self, key: bytes, regions: Regions, beside: bytes | None = None) -> RegionChange | None:
        """Return the change since the most similar earlier prompt with the same question; None if over two regions differ.

        `beside` is the digest of a question beside passages, which are then a region of their own.
        """
        if regions.question is None or (whole := regions.question_digest) is None:
            return None
        sql = (
            "select number, regions, shape from prompts where question in (?, ?) and key <> ?"
            " order by number desc limit ?"
        )
        best: RegionChange | None = None
        for number, digests, shape in self._database.rows(sql, [whole, beside or whole, key, _MAX_COMPARED]):
            changed = regions.differing_regions(self._strings.regions(digests, shape))
            if 0 < len(changed) <= _MAX_CHANGES and (best is None or len(changed) < len(best.regions)):
                best = RegionChange(tuple(changed), number)
        if best is None or beside is None:
            return best
        message = regions.names[regions.question]
        return replace(best, regions=tuple(PASSAGES if name == message else name for name in best.regions))

    def prune(self) -> None:
        # Many responses may be removed at the same time.
        last = "select time, key from tombstones order by time desc, key desc limit 1 offset ?"
        sql = f"delete from tombstones where (time, key) < ({last})"
        self._database.execute(sql, [_MAX_TOMBSTONES - 1])


@lru_cache(maxsize=64)
def _insert_sql(columns: tuple[str, ...]) -> str:
    return f"insert into prompts ({', '.join(columns)}) values ({', '.join('?' * len(columns))}) returning number"
