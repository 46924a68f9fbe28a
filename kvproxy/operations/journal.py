"""The operations that read the journal; the proxy performs them for its routes, and commands on its files or by its routes."""

import contextlib
import math
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, TypeAlias

from kvproxy.apis.json import JsonObject, as_object, loads
from kvproxy.errors import InvalidRequest, KvproxyError
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store import Store, is_url
from kvproxy.installation.checks.configured_store import open_configured_store, store_exists
from kvproxy.installation.data_folder import running_proxy
from kvproxy.journal.groups import Group
from kvproxy.journal.miss_explanation import MissExplanation, explain_in_sentences, explain_miss
from kvproxy.journal.reader import JournalReader, PromptCount, RequestGroup, TimeSeries
from kvproxy.journal.reasons import REASONS, meaning_of_reason
from kvproxy.journal.record import Record, RecordWithQuestions
from kvproxy.journal.request_regions import request_body_of
from kvproxy.journal.savings import SavingsReport, first_utc_day, savings_report
from kvproxy.journal.sessions.session_reader import LedgerReport, Session, SessionReader, TreeRow, turn_tree
from kvproxy.journal.spending import SpendingReport, record_costs, recorded_requests, spending_report, with_costs
from kvproxy.operations.client import ProxyClient, client_of_running_proxy, configured_url
from kvproxy.operations.journal_parameters import (
    LedgerQuery,
    RecordName,
    SavingsQuery,
    SeriesQuery,
    SessionName,
    SessionQuery,
    SpendingQuery,
)
from kvproxy.operations.operation import NoParameters, Operation, Parameters, Result, RowLimits, operation
from kvproxy.operations.record_query import RecordQuery
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings import load_settings
from kvproxy.settings.journal import JournalSettings
from kvproxy.units import start_time

_ROWS = RowLimits(default=100, most=1_000)
_MAX_SPANS = 1_000
_PAGE = 1_000


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
        rows = self.reader.with_questions(records, self.stored_questions)
        costs = record_costs(self.reader, rows, ModelPrices(self.settings))
        for row in rows:
            row.cost = costs.get(row.number)
        return rows

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
        question, stored_question, cost: see `RecordWithQuestions`.
        sentences: the explanation for people; it quotes requests without escaping them.
    """

    explained: MissExplanation
    question: str | None
    stored_question: str | None
    meaning: str
    sentences: list[str]
    cost: float | None = None


@operation("GET", "/log/{id}")
def explain_record(journal: JournalAccess, name: RecordName) -> RecordExplanation:
    """Explain a recorded request, given its id, the beginning of its id, or its record number."""
    record = journal.reader.find(name.id)
    (row,) = journal.with_questions([record])
    with journal.open_store() as store:
        from kvproxy.flow.explain import region_loader

        explained = explain_miss(journal.reader, record, region_loader(journal.reader, store))
    sentences = explain_in_sentences(explained, journal.format_time)
    meaning = meaning_of_reason(record.reason)
    return RecordExplanation(explained, row.question, row.stored_question, meaning, sentences, row.cost)


@operation("GET", "/savings")
def report_savings(journal: JournalAccess, query: SavingsQuery) -> SavingsReport:
    """Report savings by layer, tenant, client, model, project, tag, or day."""
    return savings_report(journal.reader, query.by, journal.settings, journal.comparison_counts(), query.since)


@operation("GET", "/savings/ledger")
def report_ledger(journal: JournalAccess, query: LedgerQuery) -> LedgerReport:
    """Return the sums of reused prompt tokens, and of computed prompt tokens by cause."""
    return journal.sessions.ledger(journal.settings.currency, first_utc_day(query.since))


@operation("GET", "/spending")
def report_spending(journal: JournalAccess, query: SpendingQuery) -> SpendingReport:
    """Report the cost of the requests from `since` to `until`, by local day, project, model, or client."""
    start = start_time(query.since, query.until)
    settings = journal.settings
    requests = recorded_requests(journal.reader, start, query.until)
    return spending_report(requests, query.by, ModelPrices(settings), settings.currency)


@operation("GET", "/sessions", rows=_ROWS)
def list_sessions(journal: JournalAccess, query: SessionQuery) -> list[Session]:
    """List the sessions with at least `turns` turns that were active from `since` (7d, or a time) to `until`, newest first.

    The first `offset` sessions are skipped.
    """
    start = start_time(query.since, query.until)
    return journal.sessions.sessions(
        query.limit, start, query.turns, query.offset, until=query.until, tenant=query.tenant
    )


@operation("GET", "/sessions/{id}")
def show_session(journal: JournalAccess, name: SessionName) -> list[TreeRow]:
    """List the turns of a session and its sub-agents as a tree, given the session's id or name, or a request's id."""
    return turn_tree(journal.sessions.turns(name.id))


# Routes with names before those with a parameter.
JOURNAL_OPERATIONS = (
    *(list_records, count_records, list_reasons, explain_record),
    *(report_savings, report_ledger, report_spending, list_sessions, show_session),
)


class DirectJournal:
    """Reads the journal of a data folder, in its file or in PostgreSQL. Raises NotFound without a journal.

    An argument `request` is a request id, its beginning, or a record number.
    """

    def __init__(
        self, data: Path | None, format_time: Callable[[float], str] = str, *, store: str | None = None
    ) -> None:
        self._settings = load_settings(data=data, store=store)
        self.reader = JournalReader(self._settings.journal_location)
        weakref.finalize(self, self.reader.close)
        self._access = JournalAccess(
            self.reader, self._settings.journal, self._open_store, self._comparison_counts, format_time
        )

    def perform(self, operation: Operation[JournalAccess, Parameters, Result], parameters: Parameters) -> Result:
        return operation(self._access, parameters)

    def records(self, query: RecordQuery) -> list[RecordWithQuestions]:
        records: list[RecordWithQuestions] = list_records.run(self._access, query)
        return records

    def record(self, request: str) -> RecordWithQuestions:
        return self._access.find(request)

    def sessions(self, query: SessionQuery) -> list[Session]:
        return list_sessions(self._access, query)

    def groups(
        self, query: RecordQuery, by: Group, *, order: Literal["requests", "backend"], limit: int | None
    ) -> list[RequestGroup]:
        """Return the groups with the most requests, or with the most seconds of the backend, as `order` selects.

        The name of a group of equal prompts is their question.
        """
        rows = self.reader.groups(query, by, order=order, limit=limit)
        rows = with_costs(self.reader, query, by, rows, ModelPrices(self._settings.journal))
        if by != "prompt":
            return rows
        prompts = self._access.stored_questions([row.entry for row in rows if row.entry is not None])
        first: dict[str, RequestGroup] = {}
        named = [replace(row, name=prompts.get(row.entry or "", row.name)) for row in rows]
        return [replace(row, differs_in=self._differing_fields(row, first.setdefault(row.name, row))) for row in named]

    def _differing_fields(self, row: RequestGroup, other: RequestGroup) -> tuple[str, ...]:
        if row.prompt is None or other.prompt is None or row.prompt == other.prompt:
            return ()
        regions, others = self.reader.regions(row.prompt), self.reader.regions(other.prompt)
        return () if regions is None or others is None else tuple(regions.differing_regions(others))

    def _comparison_counts(self) -> dict[str, int] | None:
        from kvproxy.index.store import open_observations

        if not store_exists(self._settings):
            return None
        with contextlib.closing(open_observations(self._settings.store_location)) as observations:
            return observations.summary()

    def request_bodies(self, prompts: Sequence[PromptCount]) -> Generator[JsonObject | None]:
        """Yield the request body of each prompt, from the store or the journal; None if neither has it."""
        with self._open_store() as store:
            for prompt in prompts:
                id, contents = self.reader.entry_id(prompt.number), self.reader.contents(prompt.number)
                entry = None if store is None or id is None else store.get(id)
                # Tenants may share responses, but not the ignored fields of their requests.
                if entry is not None and entry.tenant == prompt.tenant:
                    yield as_object(loads(entry.request))
                else:
                    yield None if contents is None else request_body_of(contents)

    def _open_store(self) -> AbstractContextManager[Store | None]:
        return open_configured_store(self._settings) if store_exists(self._settings) else contextlib.nullcontext()


class RemoteJournal:
    """The journal of a remote proxy; see `DirectJournal`."""

    def __init__(self, client: ProxyClient) -> None:
        self._client = client

    def perform(self, operation: Operation[JournalAccess, Parameters, Result], parameters: Parameters) -> Result:
        return self._client.perform(operation, parameters)

    def records(self, query: RecordQuery) -> list[RecordWithQuestions]:
        records: list[RecordWithQuestions] = []
        before = query.before
        while query.limit is None or len(records) < query.limit:
            limit = min(_PAGE, _PAGE if query.limit is None else query.limit - len(records))
            rows = self.perform(list_records, replace(query, limit=limit, before=before))
            records += rows
            if len(rows) < limit:
                break
            before = rows[-1].number
        return records

    def record(self, request: str) -> RecordWithQuestions:
        explanation = self.perform(explain_record, RecordName(request))
        record = explanation.explained.record
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        return RecordWithQuestions(
            **values, question=explanation.question, stored_question=explanation.stored_question, cost=explanation.cost
        )

    def sessions(self, query: SessionQuery) -> list[Session]:
        # A session that continues meanwhile moves to the beginning.
        sessions: dict[int, Session] = {}
        offset = 0
        while query.limit is None or offset < query.limit:
            limit = _PAGE if query.limit is None else min(_PAGE, query.limit - offset)
            rows = self.perform(list_sessions, replace(query, limit=limit, offset=offset))
            sessions |= {row.id: row for row in rows}
            offset += len(rows)
            if len(rows) < limit:
                break
        return list(sessions.values())


JournalClient: TypeAlias = DirectJournal | RemoteJournal


def open_journal(
    url: str,
    token: str | None,
    data: Path | None,
    format_time: Callable[[float], str] = str,
    *,
    store: str | None = None,
) -> JournalClient:
    """Open the journal of the data folder `data`, or of the shared store at a URL. Raises ProxyUnreachable or NotFound.

    If `data` is None, open the journal of the proxy at the URL. If the URL is `configured_url` and no proxy answers, open
    the journal of the default data folder.
    """
    if store is not None:
        return DirectJournal(data, format_time, store=store)
    if data is None and _reads_file_of_running_proxy(url):
        return DirectJournal(load_settings().data, format_time)
    if data is None and (client := client_of_running_proxy(url, token)) is not None:
        health = client.get("/health")
        folder = health.get("data")
        if isinstance(folder, str) and _has_journal(Path(folder), health.get("journal")):
            return DirectJournal(Path(folder), format_time)
        # The folder is on another machine, or hidden from this client.
        if isinstance(folder, str) or url != configured_url():
            return RemoteJournal(client)
    return DirectJournal(load_settings(data=data).data, format_time)


def _reads_file_of_running_proxy(url: str) -> bool:
    """Return whether the proxy at the URL runs here and writes the file of the settings, so that no request must tell it."""
    settings = load_settings()
    proxy, file = running_proxy(settings.data), settings.journal_file
    return proxy is not None and file is not None and proxy.journal == file and url == configured_url()


def open_direct_journal(
    url: str, token: str | None, data: Path | None, purpose: str, *, store: str | None = None
) -> DirectJournal:
    """Open a journal as `open_journal` does. Raises InvalidRequest if `purpose` cannot be served over HTTP."""
    journal = open_journal(url, token, data, store=store)
    if isinstance(journal, RemoteJournal):
        raise InvalidRequest(
            f"{purpose} reads the journal directly: run it on the machine of {url}, or with the `store` of its settings"
        )
    return journal


def _has_journal(data: Path, journal: object) -> bool:
    location = load_settings(data=data).journal_location
    if not is_url(location):
        return location == journal and Path(location).is_file()
    from kvproxy.index.store.postgres.database import display_name

    return display_name(location) == journal
