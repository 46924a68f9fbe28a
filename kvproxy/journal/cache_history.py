"""Records the prompts of each exact key, and why its response was removed."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from kvproxy.exchange import Exchange
from kvproxy.index.store import RemovalReason
from kvproxy.journal.databases.database import JournalDatabase
from kvproxy.journal.request_regions import Regions
from kvproxy.journal.schema import StringIds, short_key

_MAX_COMPARED = 50
_MAX_CHANGES = 2  # Requests that differ in more regions belong to different conversations.
_MAX_TOMBSTONES = 100_000
_MAX_CACHED_PROMPTS = 4_096
_MAX_CACHED_REGIONS = 250_000
_FIND = (
    "select p.number, p.entry, p.expires, p.seconds, t.reason, t.time from (select ? as key) k"
    " left join prompts p on p.key = k.key left join tombstones t on t.key = k.key"
)
_INSERT = (
    "insert into prompts (key, question, regions, shape, entry, expires, seconds, text, whole)"
    " values (?, ?, ?, ?, ?, ?, ?, ?, ?) returning number"
)
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


Change: TypeAlias = ResponseStored | ResponseRemoved | KeepWarmEnded
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

    def find(self, key: bytes) -> tuple[PromptRecord | None, Tombstone | None]:
        """Return the prompt of a `short_key`, and the last removal of its response."""
        ((number, entry, expires, seconds, reason, time),) = self._database.rows(_FIND, [key])
        prompt = None if number is None else PromptRecord(number, entry, expires, seconds)
        return prompt, None if reason is None else (reason, time)

    def regions(self, prompt_number: int) -> Regions | None:
        if prompt_number not in self._regions:
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

    def add(
        self,
        key: bytes,
        regions: Regions,
        text: str | None,
        contents: bytes | None,
        stored: ResponseStored | None = None,
        seconds: float | None = None,
    ) -> PromptRecord:
        """Insert a prompt, with its stored response and the seconds of its computation.

        `text` is the beginning of the question, and `contents` the compressed JSON of all regions; None does not store them.
        No regions are stored if they have too many names (see `StringIds.shape_id`).
        """
        shape = self._strings.shape_id(regions)
        entry, expires = (None, None) if stored is None else (stored.id, stored.expires)
        own = (None, None) if shape is None else (regions.question_digest, b"".join(regions.digests))
        ((number,),) = self._database.rows(_INSERT, [key, *own, shape, entry, expires, seconds, text, contents])
        if shape is not None:
            sizes = array("I", [min(size, 2**32 - 1) for size in regions.sizes]).tobytes()
            self._database.execute("insert into prompt_sizes (prompt, sizes) values (?, ?)", [number, sizes])
            self._cache_regions(number, regions)
        return PromptRecord(int(number), entry, expires, seconds)

    def add_text(self, number: int, text: str) -> None:
        """Store the beginning of the question of the prompt with this number, unless the prompt already has one."""
        self._database.execute("update prompts set text = ? where number = ? and text is null", [text, number])

    def add_matched_question(self, entry_id: str, text: str, record_number: int) -> None:
        """Store the beginning of the matched question of a semantic hit, in a row whose key is the id of its entry."""
        sql = (
            "insert into prompts (key, text, last) values (?, ?, ?)"
            " on conflict (key) do update set text = excluded.text, last = excluded.last"
        )
        self._database.execute(sql, [short_key(entry_id), text, record_number])

    def set_seconds(self, key: bytes, seconds: float) -> None:
        self._database.execute("update prompts set seconds = ? where key = ?", [seconds, key])

    def set_entry(self, stored: ResponseStored) -> None:
        sql = "update prompts set entry = ?, expires = ? where key = ?"
        self._database.execute(sql, [stored.id, stored.expires, short_key(stored.key)])

    def remove_tombstone(self, stored: ResponseStored) -> None:
        """Forget the removal of a response that was stored earlier than `stored`."""
        sql = "delete from tombstones where key = ? and time <= ?"
        self._database.execute(sql, [short_key(stored.key), stored.time])

    def set_last_records(self, record_numbers: Mapping[int, int]) -> None:
        """Set the last record of each prompt in `record_numbers`, which maps prompt numbers to record numbers."""
        sql = "update prompts set last = ? where number = ?"
        self._database.executemany(sql, [(record, prompt) for prompt, record in record_numbers.items()])

    def add_removal(self, removal: ResponseRemoved) -> None:
        sql = (
            "insert into tombstones (key, reason, time) values (?, ?, ?)"
            " on conflict (key) do update set reason = excluded.reason, time = excluded.time"
        )
        self._database.execute(sql, [short_key(removal.key), removal.reason, removal.time])

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

    def closest_change(self, key: bytes, regions: Regions) -> RegionChange | None:
        """Return the change since the most similar earlier prompt with the same question; None if over two regions differ."""
        if regions.question_digest is None:
            return None
        sql = "select number, regions, shape from prompts where question = ? and key <> ? order by number desc limit ?"
        best: RegionChange | None = None
        for number, digests, shape in self._database.rows(sql, [regions.question_digest, key, _MAX_COMPARED]):
            changed = regions.differing_regions(self._strings.regions(digests, shape))
            if 0 < len(changed) <= _MAX_CHANGES and (best is None or len(changed) < len(best.regions)):
                best = RegionChange(tuple(changed), number)
        return best

    def prune(self) -> None:
        # Many responses may be removed at the same time.
        last = "select time, key from tombstones order by time desc, key desc limit 1 offset ?"
        sql = f"delete from tombstones where (time, key) < ({last})"
        self._database.execute(sql, [_MAX_TOMBSTONES - 1])
