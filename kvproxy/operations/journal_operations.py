"""The operations that read the journal; the proxy performs them for its routes, and commands on the journal's files."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from kvproxy.errors import InvalidRequest, KvproxyError
from kvproxy.flow.explain import region_loader
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store import Store
from kvproxy.journal.miss_explanation import MissExplanation, explain_in_sentences, explain_miss
from kvproxy.journal.reader import JournalReader, TimeSeries
from kvproxy.journal.reasons import REASONS, meaning_of_reason
from kvproxy.journal.record import Record, RecordWithQuestions
from kvproxy.journal.record_query import RecordQuery
from kvproxy.journal.savings import SavingsReport, first_utc_day, savings_report
from kvproxy.journal.sessions.session_reader import LedgerReport, Session, SessionReader, TreeRow, turn_tree
from kvproxy.operations.journal_parameters import (
    LedgerQuery,
    RecordName,
    SavingsQuery,
    SeriesQuery,
    SessionName,
    SessionQuery,
)
from kvproxy.operations.operation import NoParameters, RowLimits, operation
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings.journal import JournalSettings

_ROWS = RowLimits(default=100, most=1_000)
_MAX_SPANS = 1_000


@dataclass(frozen=True, slots=True)
class JournalAccess:
    """A journal with its store.

    Attributes:
        open_store: opens the store of responses; None if it does not exist.
        comparison_counts: see `savings_report`.
        format_time: formats seconds since the epoch.
    """

    reader: JournalReader
    settings: JournalSettings
    open_store: Callable[[], AbstractContextManager[Store | None]]
    comparison_counts: Callable[[], Mapping[str, int] | None]
    format_time: Callable[[float], str]

    def stored_questions(self, ids: Sequence[str]) -> dict[str, str]:
        # Records are useful even if the store is unavailable, or without its keys.
        with contextlib.suppress(KvproxyError, CacheStoreError), self.open_store() as store:
            if ids and store is not None:
                return {id: question.prompt for id, question in store.questions(sorted(set(ids))).items()}
        return {}

    def with_questions(self, records: Sequence[Record]) -> list[RecordWithQuestions]:
        return self.reader.with_questions(records, self.stored_questions)

    def find(self, id_or_number: str) -> RecordWithQuestions:
        """Return a record, see `JournalReader.find`. Raises NotFound."""
        (row,) = self.with_questions([self.reader.find(id_or_number)])
        return row

    @property
    def sessions(self) -> SessionReader:
        return SessionReader(self.reader, ModelPrices(self.settings))


@operation("GET", "/log", rows=_ROWS)
def list_records(journal: JournalAccess, query: RecordQuery) -> list[RecordWithQuestions]:
    """List the records that match the filters, newest first; `before` and `after` limit the record numbers."""
    return journal.with_questions(journal.reader.records(query))


@operation("GET", "/log/series")
def count_records(journal: JournalAccess, query: SeriesQuery) -> TimeSeries:
    """Count requests and prompt tokens in intervals of `step`, in the period of length `since` before `until` (default: now)."""
    step = query.step
    if step < 1 or query.since / step > _MAX_SPANS:
        raise InvalidRequest(f"step is at least 1, and since / step at most {_MAX_SPANS}", param="step")
    # Multiples of the step, so that consecutive requests have the same spans.
    spans = max(1, round(query.since / step))
    end = time.time() if query.until is None else query.until
    return journal.reader.series(query.by, (math.ceil(end / step) - spans) * step, step, spans)


@operation("GET", "/log/reasons")
def list_reasons(journal: JournalAccess, nothing: NoParameters) -> dict[str, str]:
    """Return the meaning of each reason code."""
    return REASONS


@dataclass(frozen=True, slots=True)
class RecordExplanation:
    """A record, and the cause of its miss.

    Attributes:
        question, stored_question: see `RecordWithQuestions`.
        sentences: the explanation for people; it quotes requests without escaping them.
    """

    explained: MissExplanation
    question: str | None
    stored_question: str | None
    meaning: str
    sentences: list[str]


@operation("GET", "/log/{id}")
def explain_record(journal: JournalAccess, name: RecordName) -> RecordExplanation:
    """Explain a recorded request, given its id, the beginning of its id, or its record number."""
    record = journal.reader.find(name.id)
    (row,) = journal.with_questions([record])
    with journal.open_store() as store:
        explained = explain_miss(journal.reader, record, region_loader(journal.reader, store))
    sentences = explain_in_sentences(explained, journal.format_time)
    meaning = meaning_of_reason(record.reason)
    return RecordExplanation(explained, row.question, row.stored_question, meaning, sentences)


@operation("GET", "/savings")
def report_savings(journal: JournalAccess, query: SavingsQuery) -> SavingsReport:
    """Report savings by layer, tenant, model, tag, or day."""
    return savings_report(journal.reader, query.by, journal.settings, journal.comparison_counts(), query.since)


@operation("GET", "/savings/ledger")
def report_ledger(journal: JournalAccess, query: LedgerQuery) -> LedgerReport:
    """Return the sums of reused prompt tokens, and of computed prompt tokens by cause."""
    return journal.sessions.ledger(journal.settings.currency, first_utc_day(query.since))


@operation("GET", "/sessions", rows=_ROWS)
def list_sessions(journal: JournalAccess, query: SessionQuery) -> list[Session]:
    """List the sessions of the last `since` (such as 7d) with at least `turns` turns, newest first; skip `offset` sessions."""
    start = None if query.since is None else time.time() - query.since
    return journal.sessions.sessions(query.limit, start, query.turns, query.offset)


@operation("GET", "/sessions/{id}")
def show_session(journal: JournalAccess, name: SessionName) -> list[TreeRow]:
    """List the turns of a session and its sub-agents as a tree, given the session's id or name, or a request's id."""
    return turn_tree(journal.sessions.turns(name.id))


# Routes with names before those with a parameter.
JOURNAL_OPERATIONS = (
    *(list_records, count_records, list_reasons, explain_record),
    *(report_savings, report_ledger, list_sessions, show_session),
)
