"""The bill for accounting: cost and savings by UTC day, team, client, and model."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields

from kvproxy.journal.reader import JournalReader
from kvproxy.journal.saving_groups import bill_name, grouped_totals, split_bill_name
from kvproxy.journal.savings import savings
from kvproxy.journal.sessions.session_reader import SessionReader
from kvproxy.journal.sums_filter import SumsFilter
from kvproxy.layers import CACHES
from kvproxy.settings.journal import PriceSettings


@dataclass(slots=True)
class BillRow:
    """Requests of a UTC day, such as 2026-11-21, of a team and a client, for a model; `team` is empty without one.

    Attributes:
        client: the name of the key, or else the tenant.
        requests: requests of clients, also failed ones, that were not refused; caches answered `hits` of them.
        input_tokens, cached_tokens, output_tokens: of the requests that the provider answered, reported or else estimated;
            `cached_tokens` is the part of the input that it reused. None if they are unknown for all these requests.
        written_5m, written_1h: the parts of the input that were written to the provider's cache, for its default lifetime and
            for one hour; None if no request reports them.
        cost: their price in `journal.currency`; None if it is unknown.
        saved, hit_saved: see `Saving.money` and `Saving.hit_money`; None if they are unknown.
        refused: number of requests that the proxy refused.
        unpriced: number of requests that a model without a price answered, which `cost` and `saved` exclude.
        estimated: number of requests without reported tokens, whose tokens and cost are estimates.
        unreported: number of requests to the provider without reported or estimated tokens, which tokens and money exclude.
        unpriced_hits, unreported_hits: numbers of hits on models without a price, and without reported tokens, which `saved`
            excludes.
    """

    day: str
    team: str
    client: str
    model: str
    requests: int = 0
    hits: int = 0
    input_tokens: int | None = 0
    cached_tokens: int | None = 0
    written_5m: int | None = None
    written_1h: int | None = None
    output_tokens: int | None = 0
    cost: float | None = None
    saved: float | None = None
    hit_saved: float | None = None
    refused: int = 0
    unpriced: int = 0
    estimated: int = 0
    unreported: int = 0
    unpriced_hits: int = 0
    unreported_hits: int = 0


def sum_bill(rows: Sequence[BillRow]) -> BillRow:
    total = BillRow("all", "", "", "")
    for name in (field.name for field in fields(BillRow)[4:]):
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        setattr(total, name, sum(values) if values else getattr(total, name))
    return total


def bill(
    reader: JournalReader,
    prices: Mapping[str, PriceSettings],
    selection: SumsFilter = SumsFilter(),
    rejected: Collection[str] = (),
) -> list[BillRow]:
    """Return the rows of the bill, by day, team, client, and model in order. `rejected`: see `savings`."""
    rows: dict[str, BillRow] = {}
    for total in grouped_totals(reader, "bill", selection):
        row = rows.setdefault(total.name, BillRow(*split_bill_name(total.name)))
        if total.layer == "refused":
            row.refused += total.requests
            continue
        row.requests += 0 if total.layer == "warming" else total.requests
        if total.layer in CACHES:
            row.hits += total.requests
            continue
        row.input_tokens = (row.input_tokens or 0) + total.prompt_tokens + total.estimated_prompt_tokens
        row.cached_tokens = (row.cached_tokens or 0) + total.reused_tokens
        row.output_tokens = (row.output_tokens or 0) + total.completion_tokens + total.estimated_completion_tokens
    for team, tenant, model, day, short, long, _ in SessionReader(reader, prices).writes_by_team(selection):
        name = bill_name(day, team, tenant, model)
        row = rows.setdefault(name, BillRow(*split_bill_name(name)))
        row.written_5m, row.written_1h = (row.written_5m or 0) + short, (row.written_1h or 0) + long
    for saving in savings(reader, "bill", prices, selection=selection, rejected=rejected):
        row = rows.setdefault(saving.name, BillRow(*split_bill_name(saving.name)))
        row.cost, row.saved, row.hit_saved = saving.spent, saving.money, saving.hit_money
        row.unpriced, row.unpriced_hits = saving.unpriced_requests, saving.unpriced_hits
        row.unreported, row.unreported_hits = saving.unreported_requests, saving.unreported_hits
        row.estimated = saving.estimated_requests
        if saving.unreported_requests:
            row.output_tokens = row.output_tokens or None
            row.cached_tokens = row.cached_tokens if row.input_tokens else None
            row.input_tokens = row.input_tokens or None
    return [rows[name] for name in sorted(rows)]
