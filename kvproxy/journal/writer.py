"""Writes records into the journal's file, some at a time, in the journal's own thread."""

import sqlite3
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvproxy.index.redaction import redacted_json
from kvproxy.index.redactor import RedactionFailed, Redactor
from kvproxy.journal.asked import Asked
from kvproxy.journal.draft import Draft
from kvproxy.journal.finished import finished
from kvproxy.journal.hit_rows import HitRows
from kvproxy.journal.hits import Hits
from kvproxy.journal.past import Gone, Kept, Past, Prompt
from kvproxy.journal.reasons import reason_without_past
from kvproxy.journal.record import Record
from kvproxy.journal.regions import regions_of, written
from kvproxy.journal.rows import INSERT, row_of, short_key
from kvproxy.journal.totals import ALL, Totals
from kvproxy.journal.waiting import What
from kvproxy.journal.words import Words
from kvproxy.settings.journal import JournalSettings

_KNOWN = 20_000
"""Keys whose prompts are held in memory, so that a hit costs no look into the file."""
_BEGINNING = 200
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
            self._known.clear()
            self._totals = Totals()
            raise

    def _move(self, moved: Kept | Gone) -> None:
        self._known.pop(moved.key, None)
        if isinstance(moved, Gone):
            self._past.bury(moved)
            return
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
        others: list[tuple[object, ...]] = []
        last: dict[int, int] = {}
        for each in what:
            if isinstance(each, Hits):
                hits.append(each)
                numbers += range(number, number + len(each))
                number += len(each)
            elif isinstance(each, Draft):
                record = self._record(each, number)
                others.append(row_of(record, self._words))
                if record.prompt is not None:
                    last[record.prompt] = number
                number += 1
            else:
                self._move(each)
        self._connection.executemany(INSERT, others)
        self._past.asked((number, prompt) for prompt, number in last.items())
        self._hits.write(numbers, hits, self._totals)
        for each in what:
            if isinstance(each, Kept):
                self._past.name_entry(each)

    def _record(self, draft: Draft, number: int) -> Record:
        record = finished(draft)
        record.number = number
        if draft.key is not None and draft.parts is not None:
            self._asked(draft, record, draft.key)
        self._count(draft, record)
        self.asked.add(draft, record)
        return record

    def _prompt_of(self, key: str) -> Prompt | None:
        """What a hit asked; None where that was forgotten while the hit waited, as after an error in writing."""
        known = self._known.get(key) or self._past.prompt(short_key(key))
        if known is not None:
            self._known[key] = known
        return known

    def knows(self, key: str | None) -> bool:
        """Whether the prompt of an exact key is at hand, so that a hit needs no more than its plain values."""
        return key in self._known

    def _asked(self, draft: Draft, record: Record, key: str) -> None:
        """Give a record its prompt, and a miss its reason, by what was asked before."""
        assert draft.parts is not None
        known = self._known.get(key)
        if known is not None and draft.hit is not None:
            record.prompt = known.number
            return
        short = short_key(key)
        known = self._past.prompt(short)
        regions = regions_of(draft.parts) if known is None or record.reason == "miss-new" else None
        if record.reason == "miss-new":
            went = self._gone_when_asked(key, known, record.time)
            change = self._past.change(short, regions) if went is None and regions is not None else None
            if went is not None:
                record.reason, record.gone = f"miss-{went[0]}", went[1]
            elif change is not None:
                record.reason, record.changed, record.against = "miss-changed", ",".join(change.regions), change.against
            else:
                record.reason = reason_without_past(draft, record, asked_before=known is not None)
        if known is None:
            text, whole = self._text(draft)
            known = Prompt(self._past.add(short, regions, text, whole), None, None, None)
            renewed = self._renewed.get(key)
            if renewed is not None:
                self._past.stored(renewed.kept)
                known = Prompt(known.number, renewed.kept.id, renewed.kept.expires, None)
        if record.layer in ("forward", "prefix", "renewed") and record.status == 200:
            seconds = (record.total_ms or 0.0) / 1000
            self._past.took(known.number, seconds)
            known = Prompt(known.number, known.entry, known.expires, seconds)
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[key] = known
        record.prompt = known.number

    def _text(self, draft: Draft) -> tuple[str | None, bytes | None]:
        """What is kept of a request's text."""
        ruled = None if draft.request is None else draft.request.control.ruled.text
        if draft.request is None or draft.parts is None or (kept := ruled or self._settings.text) == "none":
            return None, None
        shown = draft.request.api.shown(draft.request.body)
        whole = written(draft.parts) if kept == "all" else None
        if self._redact is not None:
            try:
                shown = self._redact(shown)
                whole = None if whole is None else redacted_json(whole, self._redact)
            except RedactionFailed:
                return None, None
        beginning = shown[:_BEGINNING].encode("utf-8", "replace").decode()
        return beginning, None if whole is None else zlib.compress(whole)

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
            self._past.forget()
        if rows:
            self._known.clear()
        return len(rows)
