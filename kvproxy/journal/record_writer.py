"""Writes events to the journal's database in batches, on the journal's thread."""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kvproxy.exchange import CacheKey, Exchange
from kvproxy.index.entry import learning_namespace
from kvproxy.index.entry_redaction import RedactionFailed, Redactor, redact_json
from kvproxy.index.search.conversations import last_turn
from kvproxy.journal.cache_history import (
    CacheHistory,
    Change,
    ComparisonEnded,
    Event,
    KeepWarmEnded,
    PromptRecord,
    ResponseRemoved,
    ResponseStored,
    Tombstone,
)
from kvproxy.journal.daily_sums import DailySumsWithTeams
from kvproxy.journal.databases.database import JournalDatabase, JournalFailed
from kvproxy.journal.exchange_record import (
    is_warmed_by_backend,
    reason_of_decisive_neighbour,
    reason_of_unexplained_miss,
    record_of,
)
from kvproxy.journal.late_verdicts import LateVerdicts
from kvproxy.journal.record import Record
from kvproxy.journal.request_regions import (
    PASSAGES,
    Regions,
    digest_of_region,
    regions_as_json,
    regions_of,
    with_history_size,
)
from kvproxy.journal.saving_groups import counted_tags
from kvproxy.journal.schema import StringIds, record_row, short_key, stored_column
from kvproxy.journal.sessions.turn_writer import TurnWriter
from kvproxy.settings.journal import JournalSettings, PriceSettings

_MAX_CACHED_PROMPTS = 20_000
_MAX_STORED_RESPONSES = 4_096
_MAX_WITHOUT_ENTRY = 4_096
_MAX_NUMBER = 2**62
_MAX_TEXT = 200
_SHOWN_END = 120  # Characters of the end of a longer text, where the question after passages is.
_OMITTED = " … "
_DAY = 86_400
_ANSWERED = ("forward", "prefix", "shared")
"""Layers of complete responses that may have cached inputs beside computed ones."""
_SUMS = (
    *("requests", "prompt_tokens", "completion_tokens", "reused_tokens", "saved_seconds", "unreported"),
    *("estimated", "estimated_prompt_tokens", "estimated_completion_tokens", "tiered", "unpaid"),
    *("partial_hits", "unreported_partial_hits", "inputs_cached_tokens"),
)


class RecordWriter:
    """Writes records. If a method raises JournalFailed, its transaction is rolled back."""

    def __init__(
        self,
        database: JournalDatabase,
        settings: JournalSettings,
        clock: Callable[[], float],
        redact: Redactor | None = None,
        proxy: str | None = None,
    ) -> None:
        self._redact = redact
        self._database = database
        self._proxy = proxy
        self._version: int | None = None
        self._folded_day: float | None = None
        self._unconfirmed: int | None = None
        self._settings = settings
        self._clock = clock
        self._strings = StringIds(database)
        self._columns = tuple(map(stored_column, database.stored))
        self._history = CacheHistory(database, self._strings)
        self._totals = DailySumsWithTeams(database, "totals", ("tenant", "model", "layer", "tag"), _SUMS)
        self._turns = TurnWriter(database, self._strings, self._history, settings.prices)
        self.reuse_curves = self._turns.reuse_curves
        self._prompts: dict[str, PromptRecord] = {}
        self._stored_responses: OrderedDict[str, tuple[ResponseStored, tuple[str, float | None] | None]] = OrderedDict()
        """By key, the last stored response, and the removal of the response before it, until its request is recorded."""
        self._without_entry: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._verdicts = LateVerdicts()

    def use_prices(self, prices: Mapping[str, PriceSettings]) -> None:
        self._turns.use_prices(prices)

    def write(self, events: Sequence[Event]) -> None:
        """Write a record for each exchange, and the changes of the response store, in one transaction.

        After JournalFailed, the caller must retry with the same events. No record is stored twice,
        even if the failed transaction was committed.
        """
        first = None
        try:
            with self._database.transaction() as version:
                if self._is_committed():
                    return
                if version != self._version:
                    self._prompts.clear()
                    self._strings.on_rollback()
                    self._version = version
                self._turns.begin_batch()
                self._history.begin_batch({short_key(key) for event in events if (key := _key_of(event)) is not None})
                times = [event.arrived for event in events if isinstance(event, Exchange)]
                first = self._database.reserve_numbers(times) if times else None
                self._write(events, first or 0)
        except BaseException as error:
            # The commit may have failed after the database stored it.
            self._unconfirmed = first if isinstance(error, JournalFailed) else None
            self._strings.on_rollback()
            self._totals.clear()
            self._history.on_rollback()
            self._turns.on_rollback()
            self._prompts.clear()
            self._without_entry.clear()
            self._verdicts.clear()
            raise

    def _is_committed(self) -> bool:
        number, self._unconfirmed = self._unconfirmed, None
        sql = "select 1 from records where number = ?"
        return number is not None and bool(self._database.rows(sql, [number]))

    def _write(self, events: Sequence[Event], number: int) -> None:
        records: dict[int, Record] = {}
        for event in events:
            if isinstance(event, Exchange):
                record = records[number] = record_of(event)
                record.number, record.proxy = number, self._proxy
                record.verdict = self._verdicts.verdict_of(event, number)
                if event.key is not None:
                    self._add_prompt(event, record, event.key)
                self._add_to_totals(event, record)
                number += 1
            else:
                self._write_change(event, records)
        self._turns.end_batch()
        self._history.end_batch()
        self._database.insert(
            "records",
            self._columns,
            [record_row(record, self._database, self._strings) for record in records.values()],
        )
        self._totals.write()

    def _write_change(self, change: Change, records: Mapping[int, Record]) -> None:
        if isinstance(change, KeepWarmEnded):
            self._turns.set_keep_warm(change.request, change.text)
            return
        if isinstance(change, ComparisonEnded):
            self._set_verdict(change, records)
            return
        self._prompts.pop(change.key, None)
        if isinstance(change, ResponseRemoved):
            self._history.add_removal(change)
            return
        self._set_deferred_entry(change, records)
        # An entry is stored before its request ends, and the record requires the state before it.
        prompt, tombstone = self._history.find(short_key(change.key))
        earlier_removal = self._history.last_removal(prompt, tombstone, change.time)
        self._stored_responses.pop(change.key, None)
        self._stored_responses[change.key] = change, earlier_removal
        if len(self._stored_responses) > _MAX_STORED_RESPONSES:
            self._stored_responses.popitem(last=False)
        if tombstone is not None:
            self._history.remove_tombstone(change)
        if prompt is not None:
            self._history.set_entry(change)

    def _set_verdict(self, ended: ComparisonEnded, records: Mapping[int, Record]) -> None:
        number = self._verdicts.number_of(ended)
        if number is not None and number in records:
            records[number].verdict = ended.verdict
        elif number is not None:
            sql = "update records set verdict = ? where number = ?"
            self._database.execute(sql, [self._strings.id_of(ended.verdict), number])

    def _set_deferred_entry(self, stored: ResponseStored, records: Mapping[int, Record]) -> None:
        number = self._without_entry.pop((stored.key, stored.request), None)
        record = None if number is None else records.get(number)
        if record is not None:
            record.entry = stored.id
        elif number is not None:
            sql = "update records set entry = ? where number = ?"
            self._database.execute(sql, [self._database.stored_id(stored.id), number])

    def _add_prompt(self, exchange: Exchange, record: Record, cache_key: CacheKey) -> None:
        key = cache_key.exact
        prompt = self._prompts.get(key)
        if prompt is not None and exchange.layer == "exact":
            self._set_prompt(record, prompt.number)
            self._turns.add_hit(record, None)
            return
        short = short_key(key)
        prompt, tombstone = self._history.find(short)
        regions = regions_of(cache_key.parts, self._turns.contents.add)
        regions = with_history_size(regions, record.prompt_tokens)
        beside = _digest_beside_passages(exchange)
        equal = exchange.equal_requests
        if equal is not None and equal.known is None:
            # A request that arrived later may be recorded first.
            equal.known = prompt is not None, prompt is not None and prompt.seconds is not None
        if record.reason in ("miss-new", "shadow"):
            self._explain_miss(exchange, record, key, regions, beside, prompt, tombstone)
        was_sent = prompt is not None or record.layer == "shared"
        text, matched, whole = _stored_texts(exchange, self._settings.text, self._redact, is_new=prompt is None)
        if record.near is not None and matched is not None:
            self._history.add_matched_question(record.near, matched, record.number)
        if prompt is not None and text is not None:
            self._history.add_text(prompt.number, text)
        is_computed = record.layer in ("forward", "prefix", "revalidated") or is_warmed_by_backend(exchange)
        seconds = None
        if is_computed and record.status == 200:
            seconds = exchange.facts.seconds or (record.total_ms or 0.0) / 1000
        if prompt is None:
            stored, _ = self._stored_responses.get(key, (None, None))
            if stored is not None and tombstone is not None:
                self._history.remove_tombstone(stored)
            prompt = self._history.add(short, regions, text, whole, stored, seconds, record.number, beside)
            record.prompt = prompt.number
        elif seconds is not None and (prompt.seconds is None or seconds < prompt.seconds):
            self._history.set_seconds(short, seconds)
            prompt = replace(prompt, seconds=seconds)
        if len(self._prompts) >= _MAX_CACHED_PROMPTS:
            self._prompts.clear()
        self._prompts[key] = prompt
        if record.prompt is None:
            self._set_prompt(record, prompt.number)
        self._turns.add_hit(record, None if was_sent else regions)
        self._turns.add(exchange, record, regions)
        if record.entry is None:
            self._set_or_defer_entry(key, exchange, record)

    def _set_prompt(self, record: Record, prompt: int) -> None:
        record.prompt = prompt
        self._history.set_last_record(prompt, record.number)

    def _explain_miss(
        self,
        exchange: Exchange,
        record: Record,
        key: str,
        regions: Regions,
        beside: bytes | None,
        prompt: PromptRecord | None,
        tombstone: Tombstone | None,
    ) -> None:
        stored, earlier_removal = self._stored_responses.get(key, (None, None))
        if exchange.is_concurrent:
            earlier_removal = None
        elif stored is None or stored.time < record.time:
            earlier_removal = self._history.last_removal(prompt, tombstone, record.time)
        if earlier_removal is not None:
            record.removed_at = earlier_removal[1]
        asked, computed = prompt is not None, prompt is not None and prompt.seconds is not None
        if exchange.equal_requests is not None and exchange.equal_requests.known is not None:
            asked, computed = exchange.equal_requests.known
        # An equal request without a stored response explains the miss better than a similar one.
        is_explained = computed or earlier_removal or exchange.is_concurrent
        change = None if is_explained else self._history.closest_change(short_key(key), regions, beside)
        if change is not None:
            record.changed, record.against = ",".join(change.regions), change.earlier_prompt
        neighbour = reason_of_decisive_neighbour(exchange.lookup)
        was_skipped = exchange.lookup is not None and exchange.lookup.skip_reason is not None
        if record.reason == "shadow":
            return
        if earlier_removal is not None:
            record.reason = f"miss-{earlier_removal[0]}"
        elif change is not None and not was_skipped and neighbour in (None, "low-similarity"):
            record.reason = "miss-changed"
        else:
            record.reason = reason_of_unexplained_miss(exchange, asked_before=asked, computed_before=computed)

    def _set_or_defer_entry(self, key: str, exchange: Exchange, record: Record) -> None:
        stored, _ = self._stored_responses.get(key, (None, None))
        if stored is not None and stored.request == exchange.request_id:
            record.entry = stored.id
            return
        if len(self._without_entry) >= _MAX_WITHOUT_ENTRY:
            self._without_entry.popitem(last=False)
        self._without_entry[key, exchange.request_id] = record.number

    def _add_to_totals(self, exchange: Exchange, record: Record) -> None:
        # Warming that a cache answered neither saves nor costs anything.
        if record.layer == "warming" and not is_warmed_by_backend(exchange):
            return
        # The ledger counts the same requests.
        reused = record.reused_tokens if record.status == 200 else None
        tokens = (record.prompt_tokens or 0, record.completion_tokens or 0, reused or 0)
        estimated = record.estimated_prompt_tokens, record.estimated_completion_tokens
        is_paid = record.status == 200 or estimated != (None, None)
        is_unreported = is_paid and None in (record.prompt_tokens, record.completion_tokens)
        counts = int(is_unreported), int(estimated != (None, None)), *(count or 0 for count in estimated)
        has_own_price = record.service_tier is not None or record.modalities is not None
        counts = *counts, int(has_own_price), int(not is_paid), *_partial_hit_sums(record)
        # A revalidation costs money, and is no request of a client.
        requests = int(record.layer != "revalidated")
        values = (requests, *tokens, self._saved_seconds(exchange, record), *counts)
        tags = () if exchange.request is None else exchange.request.control.tags
        for tag in ("", *counted_tags(tags)):
            self._totals.add(record.time, (record.tenant, record.model, record.layer, tag), values, record.team)

    def _saved_seconds(self, exchange: Exchange, record: Record) -> float:
        if exchange.hit is None:
            return 0.0
        key = exchange.hit.key
        prompt = self._prompts.get(key) or self._history.find(short_key(key))[0]
        computed = prompt.seconds if prompt is not None else None
        return 0.0 if computed is None else computed - (record.total_ms or 0.0) / 1000

    def prune(self) -> int:
        """Delete a batch of records beyond the settings `retention` or `max_rows`; return their number."""
        oldest = self._clock() - self._settings.retention
        with self._database.transaction():
            count = self._database.delete_oldest(oldest, self._settings.max_rows)
            if count:
                least = self._database.rows("select coalesce(min(number), ?) from records", [_MAX_NUMBER])[0][0]
                unused = "not exists (select 1 from prompts p where p.number = prompt)"
                self._database.rows(f"delete from prompt_sizes where {unused}")
                self._turns.prune(least)
            self._history.prune()
            self._strings.prune(count)
            if (day := self._clock() // _DAY) != self._folded_day:
                self._totals.fold_old_days(self._clock())
                self._turns.fold_old_days(self._clock())
                self._folded_day = day
        if count:
            self._prompts.clear()
        return count


def _key_of(event: Event) -> str | None:
    """Return the exact key of an event whose prompt `CacheHistory.find` is asked for."""
    if isinstance(event, Exchange):
        return None if event.key is None else event.key.exact
    return event.key if isinstance(event, ResponseStored | ResponseRemoved) else None


def _partial_hit_sums(record: Record) -> tuple[int, int, int]:
    """Return whether the cache had some inputs of an array, whether their tokens are unknown, and their tokens."""
    is_answered = record.status == 200 and record.layer in _ANSWERED
    if not (is_answered and record.inputs_cached) or record.inputs_cached == record.inputs:
        return 0, 0, 0
    return 1, int(record.inputs_cached_tokens is None), record.inputs_cached_tokens or 0


def _stored_texts(
    exchange: Exchange, default_mode: str, redact: Redactor | None, *, is_new: bool
) -> tuple[str | None, str | None, bytes | None]:
    """Return excerpts of the question and of the matched question, and the compressed JSON of all regions.

    A text is None if it must not be stored. `default_mode` is the setting `journal.text`, which a rule may override.
    Only a new prompt requires the regions.
    """
    request, key = exchange.request, exchange.key
    if request is None or key is None or (mode := request.control.rule.journal_text or default_mode) == "none":
        return None, None, None
    has_failed = exchange.status >= 400 or exchange.failure is not None or exchange.client_disconnected
    chosen = None if exchange.lookup is None else exchange.lookup.chosen
    shown = matched = whole = None
    # The store has the questions of other requests, unless no-store forbids it.
    if mode != "hits" or ((has_failed or chosen is not None) and not request.control.no_store):
        shown = last_turn(key.semantic.text or key.semantic.prompt) or None
    if chosen is not None:
        matched = last_turn(chosen.prompt)
    if mode == "all" and is_new:
        whole = regions_as_json(key.parts)
    if redact is not None:
        try:
            shown, matched = (None if text is None else redact(text) for text in (shown, matched))
            whole = None if whole is None else redact_json(whole, redact)
        except RedactionFailed:
            return None, None, None
    return _excerpt(shown), _excerpt(matched), None if whole is None else zlib.compress(whole)


def _digest_beside_passages(exchange: Exchange) -> bytes | None:
    """Return the digest of a question that the semantic lookup found beside passages; None for another prompt."""
    lookup = exchange.lookup
    if lookup is None or learning_namespace(lookup.namespace) == lookup.namespace:
        return None
    return digest_of_region([PASSAGES, last_turn(lookup.question)])


def _excerpt(text: str | None) -> str | None:
    if text is None:
        return None
    if len(text) > _MAX_TEXT:
        text = text[: _MAX_TEXT - _SHOWN_END - len(_OMITTED)] + _OMITTED + text[-_SHOWN_END:]
    return text.encode("utf-8", "replace").decode()
