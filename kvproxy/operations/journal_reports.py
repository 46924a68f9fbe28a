"""The operations that explain and sum up the records of the journal; see journal.py."""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime

from kvproxy.errors import InvalidRequest
from kvproxy.journal.bill import BillRow, bill, sum_bill
from kvproxy.journal.completeness import complete_since
from kvproxy.journal.miss_explanation import (
    MissExplanation,
    explain_in_sentences,
    explain_miss,
    first_change,
    later_changes,
)
from kvproxy.journal.period import start_time
from kvproxy.journal.reader import TimeSeries
from kvproxy.journal.reasons import meaning_of_reason, reasons
from kvproxy.journal.record import RecordWithQuestions
from kvproxy.journal.savings import SavingsReport, savings_report
from kvproxy.journal.sessions.advice import AdviceReport, advise
from kvproxy.journal.sessions.ledger_report import LedgerReport
from kvproxy.journal.sessions.session_reader import Session, SessionReader
from kvproxy.journal.sessions.spending_report import SpendingReport, spending_report
from kvproxy.journal.sessions.turn_tree import TreeRow, turn_tree
from kvproxy.journal.spending import recorded_requests
from kvproxy.operations.journal import PAGE, ROWS, DirectJournal, JournalAccess, JournalClient, list_records
from kvproxy.operations.journal_parameters import (
    LedgerQuery,
    PriceQuery,
    RecordName,
    SavingsQuery,
    SeriesQuery,
    SessionName,
    SessionQuery,
    SpendingQuery,
    TaggedQuery,
)
from kvproxy.operations.operation import NoParameters, operation
from kvproxy.providers.prices import ModelPrices
from kvproxy.settings.journal import JournalSettings, PriceSettings

_MAX_SPANS = 1_000


@operation("GET", "/log/series")
def count_records(journal: JournalAccess, query: SeriesQuery) -> TimeSeries:
    """Count requests and prompt tokens in the period of length `since` before `until` (default: now), in intervals of `step`.

    Intervals begin at multiples of `step`; of the first and the last one, the part within the period counts.
    """
    step = query.step
    if step < 1 or query.since / step > _MAX_SPANS:
        raise InvalidRequest(f"step is at least 1, and since / step at most {_MAX_SPANS}", param="step")
    end = time.time() if query.until is None else query.until
    begin = end - query.since
    # Multiples of the step, so that consecutive requests have the same spans.
    start, spans = begin // step * step, math.ceil(end / step) - math.floor(begin / step)
    period = begin, math.inf if query.until is None else end
    return journal.reader.series(query.by, start, step, max(1, spans), period)


@operation("GET", "/log/reasons")
def list_reasons(journal: JournalAccess, nothing: NoParameters) -> dict[str, str]:
    """Return the meaning of each reason code."""
    return reasons()


@dataclass(frozen=True, slots=True)
class RecordExplanation:
    """A record, and the cause of its miss.

    Attributes:
        question, stored_question, cost, written_5m, written_1h, lost, lost_tokens, lost_cost, first_change, session:
            see `RecordWithQuestions`.
        sentences: the explanation for people; it quotes requests without escaping them.
    """

    explained: MissExplanation
    question: str | None
    stored_question: str | None
    meaning: str
    sentences: list[str]
    cost: float | None = None
    written_5m: int | None = None
    written_1h: int | None = None
    lost: dict[str, int] | None = None
    lost_tokens: int | None = None
    lost_cost: float | None = None
    first_change: str | None = None
    session: int | None = None


@operation("GET", "/log/{id}")
def explain_record(journal: JournalAccess, name: RecordName) -> RecordExplanation:
    """Explain a recorded request, given its id, the beginning of its id, or its record number."""
    record = journal.reader.find(name.id)
    (row,) = journal.with_questions([record])
    with journal.open_store() as store:
        from kvproxy.flow.explain import region_loader, similarity_loader

        load = region_loader(journal.reader, store)
        explained = explain_miss(journal.reader, record, load, similarity_loader(store))
    sentences = explain_in_sentences(explained, journal.format_time)
    meaning = meaning_of_reason(record.reason)
    added = (row.cost, row.written_5m, row.written_1h, row.lost, row.lost_tokens, row.lost_cost, row.first_change)
    return RecordExplanation(explained, row.question, row.stored_question, meaning, sentences, *added, row.session)


@operation("GET", "/savings")
def report_savings(journal: JournalAccess, query: SavingsQuery) -> SavingsReport:
    """Report savings by layer, tenant, client, team, model, project, tag, or day."""
    return savings_report(journal.reader, query.by, journal.settings, journal.hit_verdicts(), query.selection())


@dataclass(frozen=True, slots=True)
class Bill:
    """A bill in a currency; see `BillRow`. `total` is the sum of the rows."""

    rows: list[BillRow]
    total: BillRow
    currency: str


@operation("GET", "/savings/bill")
def report_bill(journal: JournalAccess, query: LedgerQuery) -> Bill:
    """Report cost and savings by UTC day, team, client, and model, for accounting."""
    verdicts = journal.hit_verdicts()
    rejected = () if verdicts is None else verdicts.rejected
    rows = bill(journal.reader, ModelPrices(journal.settings), query.selection(), rejected)
    return Bill(rows, sum_bill(rows), journal.settings.currency)


@operation("GET", "/savings/ledger")
def report_ledger(journal: JournalAccess, query: LedgerQuery) -> LedgerReport:
    """Return the sums of reused prompt tokens, and of computed prompt tokens by cause."""
    return _sessions(journal).ledger(journal.settings.currency, query.selection())


@operation("GET", "/savings/advice")
def report_advice(journal: JournalAccess, query: TaggedQuery) -> AdviceReport:
    """Return what to change first, with the money that it would have saved."""
    settings = journal.settings
    return advise(_sessions(journal).selected_turns(query.selection()), ModelPrices(settings), settings.currency)


@operation("GET", "/spending")
def report_spending(journal: JournalAccess, query: SpendingQuery) -> SpendingReport:
    """Report the cost of the requests from `since` to `until`, by local day, project, model, client, team, or service tier."""
    start = start_time(query.since, query.until)
    settings = journal.settings
    requests = recorded_requests(journal.reader, start, query.until, query.tenant, query.model, query.team, query.tag)
    # A part of the records has no pace.
    now = datetime.now(UTC).astimezone() if start is None and query.until is None else None
    report = spending_report(requests, query.by, ModelPrices(settings), settings.currency, now=now)
    oldest = complete_since(journal.reader)
    return replace(report, complete_since=oldest) if oldest is not None and (start or 0.0) < oldest else report


@operation("GET", "/sessions", rows=ROWS)
def list_sessions(journal: JournalAccess, query: SessionQuery) -> list[Session]:
    """List the sessions with at least `turns` turns that were active from `since` (7d, or a time) to `until`, newest first.

    The first `offset` sessions are skipped.
    """
    start = start_time(query.since, query.until)
    return _sessions(journal).sessions(
        query.limit,
        start,
        query.turns,
        query.offset,
        until=query.until,
        tenant=query.tenant,
        team=query.team,
        model=query.model,
        tag=query.tag,
    )


@operation("GET", "/sessions/{id}")
def show_session(journal: JournalAccess, name: SessionName) -> list[TreeRow]:
    """List the turns of a session and its sub-agents as a tree, given the session's id or name, or a request's id."""
    tree = turn_tree(_sessions(journal).turns(name.id))
    rows = [replace(row, later_changes=later_changes(journal.reader, row.turn)) for row in tree]
    return _with_quotes(journal, rows) if name.quotes else rows


def _with_quotes(journal: JournalAccess, rows: list[TreeRow]) -> list[TreeRow]:
    with journal.open_store() as store:
        from kvproxy.flow.explain import region_loader

        load = region_loader(journal.reader, store)
        changes = [first_change(journal.reader, row.turn, load) for row in rows]
    return [
        row if change is None else replace(row, before=change.before, after=change.after)
        for row, change in zip(rows, changes, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class PriceTier:
    """Prices per million tokens of requests whose prompt has more than `above` tokens; None if unknown.

    Attributes:
        since: the UTC day on which later prices start; None for the present prices.
        service_tier: tier that serves the requests, such as batch; None for the standard tier.
        source: as that of the model, with the factor of the service tier if the list has no prices of it.
        audio_input, audio_output, image_input, image_output: prices of audio and image tokens; of images without one, text's.
        hours: hours of this day in UTC with the prices, such as `01:00-04:00, 06:00-10:00`; None for all.
    """

    above: int
    input: float | None = None
    cached: float | None = None
    write_5m: float | None = None
    write_1h: float | None = None
    output: float | None = None
    since: str | None = None
    service_tier: str | None = None
    source: str | None = None
    audio_input: float | None = None
    audio_output: float | None = None
    image_input: float | None = None
    image_output: float | None = None
    hours: str | None = None

    @classmethod
    def of(
        cls, above: int, price: PriceSettings, source: str | None, since: str | None = None, tier: str | None = None
    ) -> "PriceTier":
        text = price.input, price.cached, price.write_5m, price.write_1h, price.output
        audio, image = (price.audio_input, price.audio_output), (price.image_input, price.image_output)
        return cls(above, *text, since, tier, source, *audio, *image)


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """The prices of a model.

    Attributes:
        source: `settings: PATTERN`, or `list` for the list price; None without a price.
        tiers: present prices by the length of the prompt, the shortest first, then later prices of the settings, then those
            of service tiers; empty without a price.
    """

    model: str
    source: str | None
    tiers: list[PriceTier]


@dataclass(frozen=True, slots=True)
class KnownPrice:
    """The present prices per million tokens of a model's short prompts in the standard service tier; see `ModelPrice`."""

    model: str
    source: str | None
    input: float
    cached: float | None
    write_5m: float | None
    write_1h: float | None
    output: float


def known_prices(settings: JournalSettings, search: str | None) -> list[KnownPrice]:
    """Return the prices of all known models, or of those whose names contain a text."""
    prices = ModelPrices(settings)
    names = [name for name in prices.known_models() if search is None or search.lower() in name.lower()]
    priced = [(name, price) for name in names if (price := prices.at(name)) is not None]
    return [
        KnownPrice(
            name, prices.source_of(name), price.input, price.cached, price.write_5m, price.write_1h, price.output
        )
        for name, price in priced
    ]


@operation("GET", "/prices")
def list_prices(journal: JournalAccess, query: PriceQuery) -> list[ModelPrice]:
    """List the prices that costs and savings use at present, with their sources."""
    return configured_prices(journal.settings, query, journal.reader.models())


def configured_prices(settings: JournalSettings, query: PriceQuery, models: Iterable[str] = ()) -> list[ModelPrice]:
    """Return the prices of the model of the query, or else of `models` and those in the settings."""
    prices = ModelPrices(settings)
    models = [query.model] if query.model else sorted({*models, *(name for name in settings.prices if "*" not in name)})
    return [ModelPrice(model, prices.source_of(model), list(_price_tiers(model, prices))) for model in models]


def _price_tiers(model: str, prices: ModelPrices) -> Iterator[PriceTier]:
    source = prices.source_of(model)
    hours = prices.hours(model)
    for text, price in hours:
        yield replace(PriceTier.of(0, price, source), hours=text)
    for above, price in prices.tiers(model)[1 if hours else 0 :]:
        yield PriceTier.of(above, price, source)
    for day, price in prices.later(model):
        yield PriceTier.of(0, price, source, day)
    for tier, tier_source in prices.service_tiers(model).items():
        for above, price in prices.tiers(model, tier):
            yield PriceTier.of(above, price, tier_source, tier=tier)


# Routes with names before those with a parameter.
JOURNAL_OPERATIONS = (
    *(list_records, count_records, list_reasons, explain_record),
    *(
        report_savings,
        report_bill,
        report_ledger,
        report_advice,
        report_spending,
        list_sessions,
        show_session,
        list_prices,
    ),
)


def _sessions(journal: JournalAccess) -> SessionReader:
    return SessionReader(journal.reader, ModelPrices(journal.settings))


def find_record(journal: JournalClient, request: str) -> RecordWithQuestions:
    """Return the record of a request, given its id, the beginning of its id, or its record number. Raises NotFound."""
    name = RecordName(request)
    if isinstance(journal, DirectJournal):
        return journal.record(name.id)
    explanation = journal.perform(explain_record, name)
    record = explanation.explained.record
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    added = [field.name for field in fields(RecordWithQuestions) if field.name not in values]
    return RecordWithQuestions(**values, **{name: getattr(explanation, name) for name in added})


def find_sessions(journal: JournalClient, query: SessionQuery) -> list[Session]:
    """Return all sessions that match, also if a remote proxy lists them in pages."""
    if isinstance(journal, DirectJournal):
        return journal.perform(list_sessions, query)
    # A session that continues meanwhile moves to the beginning.
    sessions: dict[int, Session] = {}
    offset = 0
    while query.limit is None or offset < query.limit:
        limit = PAGE if query.limit is None else min(PAGE, query.limit - offset)
        rows = journal.perform(list_sessions, replace(query, limit=limit, offset=offset))
        sessions |= {row.id: row for row in rows}
        offset += len(rows)
        if len(rows) < limit:
            break
    return list(sessions.values())
