"""Writes records into the journal's file, some at a time, in the journal's own thread."""

import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvproxy.index.many import insert_many
from kvproxy.index.redactor import Redactor
from kvproxy.journal.asked import Asked
from kvproxy.journal.draft import Draft
from kvproxy.journal.finished import finished
from kvproxy.journal.hit_rows import HitRows
from kvproxy.journal.hits import Hits
from kvproxy.journal.past import Gone, Kept, Past, Prompt
from kvproxy.journal.reasons import reason_without_past
from kvproxy.journal.record import Record
from kvproxy.journal.regions import Regions, regions_of
from kvproxy.journal.rows import INSERT, blob_of, row_of, short_key
from kvproxy.journal.texts import kept_text
from kvproxy.journal.totals import ALL, Totals
from kvproxy.journal.waiting import What
from kvproxy.journal.words import Words
from kvproxy.settings.journal import JournalSettings

_KNOWN = 20_000
"""Keys whose prompts are held in memory, so that a hit costs no look into the file."""
_UNNAMED = 4_096
_PRUNED_AT_ONCE = 5_000
_BEYOND = 2**62


@dataclass(frozen=True, slots=True)
class _Renewed:
    """An entry that was stored, and why there was none before it."""

    kept: Kept
    went: tuple[str, float | None] | None


class Writer:
    """Writes records. Every method may raise sqlite3.Error; nothing of its call is in the file then.

    Args:
        connection: to the file, used by nobody else.
        settings: how much is kept.
        clock: seconds since the epoch.
        redact: takes out of texts what must not be kept; None keeps them as they are.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        settings: JournalSettings,
        clock: Callable[[], float],
        redact: Redactor | None = None,
    ) -> None:
        self._redact = redact
        self.asked = Asked(redact)
        self._connection = connection
        self._settings = settings
        self._clock = clock
        self._words = Words(connection)
        self._past = Past(connection, self._words)
        self._known: dict[str, Prompt] = {}
        self._hits = HitRows(connection, self._words, self._past, self._prompt_of)
        self._totals = Totals()
        self._renewed: dict[str, _Renewed] = {}
        # Numbers of records by key and request, of whose answers no entry is known.
        self._unnamed: OrderedDict[tuple[str, str], int] = OrderedDict()

    def write(self, what: Sequence[What]) -> None:
        """Keep what happened, in its order and in one transaction: requests that are over, and entries that came and went."""
        try:
            with self._connection:
                self._connection.execute("begin immediate")
                row = self._connection.execute("select max(number) from records").fetchone()
                self._write(what, (row[0] or 0) + 1)
                self._totals.write(self._connection)
        except BaseException:
            self._words.forget()
            self._past.forget()
            self._known.clear()
            self._unnamed.clear()
            self._totals = Totals()
            raise

    def _move(self, moved: Kept | Gone, records: Mapping[int, Record]) -> None:
        self._known.pop(moved.key, None)
        if isinstance(moved, Gone):
            self._past.bury(moved)
            return
        self._name_entry(moved, records)
        key = short_key(moved.key)
        # An entry is stored before its request is over, which wants to know what was there before it.
        went = self._past.why_gone(key, self._past.prompt(key), moved.time)
        if len(self._renewed) >= _KNOWN:
            self._renewed.clear()
        self._renewed[moved.key] = _Renewed(moved, went)
        self._past.stored(moved)

    def _gone_when_asked(self, key: str, known: Prompt | None, time: float) -> tuple[str, float | None] | None:
        """Why nothing was stored for a key when it was asked for, and since when; see `Past.why_gone`."""
        renewed = self._renewed.get(key)
        if renewed is not None and renewed.kept.time >= time:
            return renewed.went
        return self._past.why_gone(short_key(key), known, time)

    def _write(self, what: Sequence[What], number: int) -> None:
        hits: list[Hits] = []
        numbers: list[int] = []
        records: dict[int, Record] = {}
        self._past.begin(self._keys(what))
        read = self._read(what)
        for place, each in enumerate(what):
            if isinstance(each, Hits):
                hits.append(each)
                numbers += range(number, number + len(each))
                number += len(each)
            elif isinstance(each, Draft):
                record, regions = read[place]
                record.number = number
                self._record(each, record, regions)
                records[number] = record
                number += 1
            else:
                self._move(each, records)
        self._past.asked((number, record.prompt) for number, record in records.items() if record.prompt is not None)
        self._hits.write(numbers, hits, self._totals, alone=not records)
        insert_many(self._connection, INSERT, [row_of(record, self._words) for record in records.values()])
        self._past.write()

    def _keys(self, what: Sequence[What]) -> set[bytes]:
        """The keys of which something must be known. An entry that went leaves a tombstone, whatever was known of it."""
        moved = {short_key(each.key) for each in what if isinstance(each, Kept)}
        asked = (each for each in what if isinstance(each, Draft) and each.parts is not None)
        new = {short_key(each.key) for each in asked if each.key is not None and self._at_hand(each) is None}
        return moved | new

    def _at_hand(self, draft: Draft) -> Prompt | None:
        """The prompt of a hit, where it is in memory."""
        return None if draft.hit is None or draft.key is None else self._known.get(draft.key)

    def _read(self, what: Sequence[What]) -> dict[int, tuple[Record, Regions | None]]:
        """The records of requests by their places, as far as they are told by the requests alone; and the regions of those
        that may be new."""
        read: dict[int, tuple[Record, Regions | None]] = {}
        for place, each in enumerate(what):
            if not isinstance(each, Draft):
                continue
            record, regions = finished(each), None
            parts = None if each.key is None or self._at_hand(each) is not None else each.parts
            if parts is not None and (record.reason == "miss-new" or not self._past.knows(short_key(each.key or ""))):
                regions = regions_of(parts)
            read[place] = record, regions
        self._past.look_for(
            regions for record, regions in read.values() if regions is not None and record.reason == "miss-new"
        )
        return read

    def _name_entry(self, kept: Kept, records: Mapping[int, Record]) -> None:
        """Tell the record of the request that made an entry of it, where that was over before the entry was stored.

        Args:
            records: by number, those that are not in the file yet.
        """
        number = self._unnamed.pop((kept.key, kept.request), None)
        record = None if number is None else records.get(number)
        if record is not None:
            record.entry = kept.id
        elif number is not None:
            sql = "update records set entry = ? where number = ?"
            self._connection.execute(sql, [blob_of(kept.id), number])

    def _record(self, draft: Draft, record: Record, regions: Regions | None) -> None:
        """Complete a record by what was asked before, and count it."""
        if draft.key is not None and draft.parts is not None:
            self._asked(draft, record, draft.key, regions)
        self._count(draft, record)
        self.asked.add(draft, record)

    def _prompt_of(self, key: str) -> Prompt | None:
        """What a hit asked; None where that was forgotten while the hit waited, as after an error in writing."""
        known = self._known.get(key) or self._past.prompt(short_key(key))
        if known is not None:
            self._known[key] = known
        return known

    def knows(self, key: str | None) -> bool:
        """Whether the prompt of an exact key is at hand, so that a hit needs no more than its plain values."""
        return key in self._known

    def _asked(self, draft: Draft, record: Record, key: str, regions: Regions | None) -> None:
        """Give a record its prompt, and a miss its reason, by what was asked before."""
        assert draft.parts is not None
        known = self._known.get(key)
        if known is not None and draft.hit is not None:
            record.prompt = known.number
            return
        short = short_key(key)
        known = self._past.prompt(short)
        if regions is None and (known is None or record.reason == "miss-new"):
            regions = regions_of(draft.parts)
        if record.reason == "miss-new":
            went = self._gone_when_asked(key, known, record.time)
            change = self._past.change(short, regions) if went is None and regions is not None else None
            if went is not None:
                record.reason, record.gone = f"miss-{went[0]}", went[1]
            elif change is not None:
                record.reason, record.changed, record.against = "miss-changed", ",".join(change.regions), change.against
            else:
                computed = known is not None and known.seconds is not None
                record.reason = reason_without_past(
                    draft, record, asked_before=known is not None, computed_before=computed
                )
        if known is None:
            text, whole = kept_text(draft, self._settings.text, self._redact)
            known = Prompt(self._past.add(short, regions, text, whole), None, None, None)
            renewed = self._renewed.get(key)
            if renewed is not None:
                self._past.stored(renewed.kept)
                known = Prompt(known.number, renewed.kept.id, renewed.kept.expires, None)
        if record.layer in ("forward", "prefix", "renewed") and record.status == 200:
            seconds = (record.total_ms or 0.0) / 1000
            self._past.took(short, seconds)
            known = Prompt(known.number, known.entry, known.expires, seconds)
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[key] = known
        record.prompt = known.number
        if record.entry is None:
            self._without_entry(key, draft, record)

    def _without_entry(self, key: str, draft: Draft, record: Record) -> None:
        """Name the entry that was made of an answer, or do so when it is stored."""
        renewed = self._renewed.get(key)
        if renewed is not None and renewed.kept.request == draft.request_id:
            record.entry = renewed.kept.id
            return
        if len(self._unnamed) >= _UNNAMED:
            self._unnamed.popitem(last=False)
        self._unnamed[key, draft.request_id] = record.number

    def _count(self, draft: Draft, record: Record) -> None:
        """Add a request to the totals, under each of its tags too; what no client asked for is none."""
        if record.layer == "renewed":
            return
        saved = self._saved(draft, record)
        for tag in (ALL, *(draft.request.control.tags if draft.request is not None else ())):
            total = self._totals.of(record.time, record.tenant, record.model, record.layer, tag)
            total.requests += 1
            total.prompt_tokens += record.prompt_tokens or 0
            total.completion_tokens += record.completion_tokens or 0
            total.reused_tokens += record.reused_tokens or 0
            total.saved_seconds += saved
            total.expected_wrong += (record.error or 0.0) if record.layer == "semantic" else 0.0
            total.first_seconds += (record.first_ms or 0.0) / 1000
            total.seconds += (record.total_ms or 0.0) / 1000

    def _saved(self, draft: Draft, record: Record) -> float:
        """Seconds that a hit saved: those that its answer took when it was computed, less its own."""
        if draft.hit is None:
            return 0.0
        known = self._known.get(draft.hit.key) or self._past.prompt(short_key(draft.hit.key))
        took = known.seconds if known is not None else None
        return 0.0 if took is None else max(0.0, took - (record.total_ms or 0.0) / 1000)

    def prune(self) -> int:
        """Remove records beyond the bounds, some thousand at most; how many."""
        oldest = self._clock() - self._settings.days * 86_400
        # Only the oldest are looked at: a look at a million would hold up the records that come meanwhile.
        sql = (
            "delete from records where number in (select number from (select number, time from records order by number"
            " limit ?) where number <= (select max(number) from records) - ? or time < ?)"
            " returning coalesce(prompt, (select prompt from equals where equals.number = equal))"
        )
        with self._connection:
            self._connection.execute("begin immediate")
            rows = self._connection.execute(sql, [_PRUNED_AT_ONCE, self._settings.rows, oldest]).fetchall()
            prompts = {prompt for (prompt,) in rows if prompt is not None}
            (least,) = self._connection.execute("select coalesce(min(number), ?) from records", [_BEYOND]).fetchone()
            unused = "delete from prompts where number = ? and last < ?"
            self._connection.executemany(unused, [(each, least) for each in prompts])
            self._connection.execute("delete from equals where number < ? and last < ?", [least, least])
            self._past.prune()
        if rows:
            self._known.clear()
            self._past.forget()
        return len(rows)
