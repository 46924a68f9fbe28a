"""`kvproxy savings`: tokens, time, and money saved by the response cache, prefix caches, and the provider's cache."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from kvproxy.analyse.charts import Chart
from kvproxy.commands.files import save_charts
from kvproxy.commands.formatting import Formatted, amount_text, money, percent
from kvproxy.commands.journal.log import EMPTY, no_match
from kvproxy.commands.journal.spending import count_notes, group_name
from kvproxy.commands.options import JournalOptions, Plot
from kvproxy.commands.output import Output, print_text
from kvproxy.commands.row_fields import RowFields
from kvproxy.commands.tables import Column, ListLayout, Row, number_column, print_table, text_column
from kvproxy.journal.sessions.ledger import CAUSES, UNREPORTED
from kvproxy.operations.journal_parameters import LedgerQuery, SavingsQuery, TaggedQuery
from kvproxy.units import plural, tenant_name

if TYPE_CHECKING:
    from kvproxy.journal.bill import BillRow
    from kvproxy.journal.saving import Saving
    from kvproxy.journal.savings import SavingsReport
    from kvproxy.journal.sessions.advice import Advice, AdviceReport
    from kvproxy.journal.sessions.ledger_report import LedgerReport
    from kvproxy.journal.sums_filter import SumsFilter
    from kvproxy.operations.journal import JournalClient
    from kvproxy.operations.journal_reports import Bill

_MAX_BARS = 10
_DIGEST = re.compile(r"[0-9a-f]{16}")
_NO_PRICE = 'No price is known: set prices in kvproxy.toml under [journal.prices."MODEL"].'


def savings(
    *,
    query: SavingsQuery,
    ledger: Annotated[bool, Option("--ledger", help="List the reused and the lost prompt tokens instead.")] = False,
    bill: Annotated[bool, Option("--bill", help="List cost and savings by UTC day, team, client, and model.")] = False,
    advice: Annotated[
        bool, Option("--advice", help="List what to change first, with the money that it saves.")
    ] = False,
    layout: Annotated[
        ListLayout,
        RowFields(
            "kvproxy.journal.savings:Saving",
            ledger=("kvproxy.journal.sessions.ledger_report:LedgerRow",),
            bill=("kvproxy.journal.bill:BillRow", "currency"),
            advice=("kvproxy.journal.sessions.advice:Advice",),
        ),
    ],
    plot: Plot = None,
    source: JournalOptions,
) -> Output:
    """Sum the tokens, seconds and money saved by all caches.

    Prices are set in kvproxy.toml: [journal.prices."gpt-4o*"] with input, cached, write_5m, write_1h and output per million
    tokens. The layer prefix includes the provider's own cache. A hit saves the provider's price, with the discount that its own
    prefix cache would have given. The column At least subtracts the largest plausible number of wrong semantic hits. Removed
    responses stay in the sums. With --ledger, each prompt token that reached the backend is reused, or lost to one cause.
    With --advice, each cause of recorded requests has its remedy, the most expensive first; the cost of the remedy, such as
    of writes, is not subtracted. kvproxy sessions lists what reuse saved in each session.

    Example: kvproxy savings --by client

    Example: kvproxy savings --by day --since 7d --plot savings.svg

    Example: kvproxy savings --ledger

    Example: kvproxy savings --advice --since 7d

    Example: kvproxy savings --bill --since 30d --csv > bill.csv
    """
    from kvproxy.operations.journal_reports import report_advice, report_bill, report_ledger, report_savings

    by, selection = query.by, query.selection()
    chosen = [name for name, given in (("--bill", bill), ("--ledger", ledger), ("--advice", advice)) if given]
    if chosen and (by != "layer" or plot is not None or len(chosen) > 1):
        option = "--by" if by != "layer" else "--plot" if plot is not None else chosen[1]
        raise typer.BadParameter(f"{chosen[0]} has its own groups, so {option} does not apply")
    journal = source.open_for_money()
    if chosen:
        ledger_query = LedgerQuery(
            since=query.since, until=query.until, tenant=query.tenant, team=query.team, model=query.model
        )
        if query.tag is not None and not advice:
            raise typer.BadParameter(
                f"the sums of {chosen[0]} have no tags: savings, savings --advice, sessions --by, and log have --tag"
            )
        if bill:
            bill_report = journal.perform(report_bill, ledger_query)
            return _bill_output(bill_report, selection, layout, _empty(bill_report.rows, journal, query))
        if advice:
            tagged = TaggedQuery(**asdict(ledger_query), tag=query.tag)
            return _advice_output(journal.perform(report_advice, tagged), layout)
        ledger_report = journal.perform(report_ledger, ledger_query)
        empty = _empty(ledger_report.rows, journal, query)
        document = asdict(ledger_report) | _counted_days(selection)
        return Output(
            document,
            lambda: _print_ledger(ledger_report, selection, layout, empty),
            records=document["rows"],
        )
    report = journal.perform(report_savings, query)
    empty = _empty(report.rows, journal, query)
    charts = _savings_charts(report, by)
    save_charts(charts, plot)
    document = asdict(report) | _counted_days(selection)
    return Output(
        document,
        lambda: _print_savings(report, by, selection, layout, empty),
        charts=charts,
        records=document["rows"],
        note="UTC days; sessions --by day lists local days" if by == "day" and report.rows else None,
    )


def _bill_output(report: "Bill", selection: "SumsFilter", layout: ListLayout, empty: str) -> Output:
    total = [report.total] if len(report.rows) > 1 else []
    rows: list[Row] = [
        {
            "Day": row.day,
            Column("Team", is_optional=True, hides_empty=True): row.team or None,
            text_column("Client"): row.client,
            text_column("Model"): row.model,
            "Requests#": row.requests,
            "Hits#": row.hits,
            number_column("Refused", "refused", optional=True): row.refused,
            number_column("Input", "input_tokens", optional=True): row.input_tokens,
            number_column("Cached", "cached_tokens", optional=True): row.cached_tokens,
            number_column("Written 5m", "written_5m", optional=True, hides_empty=True): row.written_5m,
            number_column("Written 1h", "written_1h", optional=True, hides_empty=True): Formatted(
                f"{row.written_1h:,}" if row.written_1h else "", row.written_1h
            ),
            number_column("Output", "output_tokens", optional=True): row.output_tokens,
            number_column(f"Cost {report.currency}", "cost"): money(row.cost, leaves_out_models=row.unpriced > 0),
            number_column(f"Saved {report.currency}", "saved"): money(
                row.saved, leaves_out_models=row.unpriced + row.unpriced_hits > 0
            ),
            number_column("By hits", "hit_saved"): money(row.hit_saved, leaves_out_models=row.unpriced_hits > 0),
        }
        for row in [*report.rows, *total]
    ]
    document = asdict(report) | _counted_days(selection)
    records = [row | {"currency": report.currency} for row in document["rows"]]
    sums = [asdict(row) | {"currency": report.currency} for row in total]

    def show() -> None:
        print_table(rows, empty=empty, layout=layout, records=[*records, *sums])
        _print_counted_days(selection)

    return Output(document, show, records=records, note="\n".join(_bill_notes(report.total)) or None)


def advice_rows(advice: "Sequence[Advice]", currency: str) -> list[Row]:
    return [
        {
            number_column(f"Saves at most {currency}", "saved"): money(row.saved),
            number_column(f"Lost {currency}", "lost_cost"): money(row.lost_cost),
            "Tokens#": row.tokens,
            "Turns#": row.turns,
            Column("Reuse", field="reuse"): row.reuse,
            Column("Lost to", field="cause"): row.cause,
            Column("First change", is_text=True, field="place", hides_empty=True): row.place,
            text_column("Model"): row.model,
            Column("Remedy", is_text=True, folds=True): row.remedy,
        }
        for row in advice
    ]


def print_minor_changes(changes: int) -> None:
    """Print how many changes the advice leaves out."""
    from kvproxy.journal.sessions.advice import LEAST_SAVED

    if changes:
        print_text(f"{plural(changes, 'change')} with less than {LEAST_SAVED:.1%} of the cost of the input not shown")


def _advice_output(report: "AdviceReport", layout: ListLayout) -> Output:
    rows = advice_rows(report.rows, report.currency)
    document = asdict(report)

    def show() -> None:
        empty = "no recorded request lost reuse" if not report.left_out else "no change would save much"
        print_table(rows, empty=empty, layout=layout, records=document["rows"])
        print_minor_changes(report.left_out)
        if report.one_hour_cost is not None:
            print_text(
                f"Writes for one hour cost {amount_text(report.one_hour_cost)} {report.currency} more than those for five"
                f" minutes; reuse after longer pauses saved {amount_text(report.one_hour_saved or 0.0)} {report.currency}."
            )

    return Output(document, show, records=document["rows"])


def _bill_notes(total: "BillRow") -> Iterator[str]:
    if total.refused:
        yield f"not in the requests: {plural(total.refused, 'refused request')}"
    yield from count_notes(total.unpriced, total.estimated, total.unreported)
    if total.unpriced_hits:
        yield f"not in the saved money: {plural(total.unpriced_hits, 'hit')} on models without a price"
    if total.unreported_hits:
        yield f"not in the saved money: {plural(total.unreported_hits, 'hit')} without reported tokens"


def _empty(rows: Sequence[object], journal: "JournalClient", query: SavingsQuery) -> str:
    """Return the sentence for a table without rows; an empty text with rows."""
    selection = query.selection()
    return "" if rows else no_match(journal, query, "no requests yet" if selection == type(selection)() else EMPTY)


def _counted_days(selection: "SumsFilter") -> dict[str, str | None]:
    return {"first_day": selection.first_day, "last_day": selection.last_day}


def _print_counted_days(selection: "SumsFilter") -> None:
    first, last = selection.first_day, selection.last_day
    days = [*([f"since {first} 00:00"] if first else []), *([f"until {last} 24:00"] if last else [])]
    if days:
        print_text(f"All requests {' '.join(days)} UTC count: the journal stores these sums by day.")


def _savings_charts(report: "SavingsReport", by: str) -> list[Chart]:
    saved = [(row, (row.prompt_tokens or 0) + (row.completion_tokens or 0) + row.reused_tokens) for row in report.rows]
    saved = [(row, tokens) for row, tokens in saved if tokens][: None if by == "day" else _MAX_BARS]
    bars: dict[str, list[tuple[str, float]]] = {"tokens": [(_group_name(row, by), tokens) for row, tokens in saved]}
    bars[report.currency] = [(_group_name(row, by), row.money) for row, _ in saved if row.money is not None]
    if not bars[report.currency]:
        bars["seconds"] = [(_group_name(row, by), row.seconds) for row, _ in saved if row.seconds is not None]
    return [Chart(f"saved {unit} by {by}", "", bars=unit_bars) for unit, unit_bars in bars.items() if unit_bars]


def _print_ledger(report: "LedgerReport", selection: "SumsFilter", layout: ListLayout, empty: str) -> None:
    print_table(ledger_rows(report), empty=empty, layout=layout, records=[asdict(row) for row in report.rows])
    _print_counted_days(selection)
    if not report.rows:
        return
    written = report.written_5m + report.written_1h
    sentence = f"{report.prompt_tokens:,} prompt tokens"
    sentence += f", {written:,} written to a provider's cache" if written else ""
    if written and report.unread_writes is not None:
        sentence += f" (of which {report.unread_writes:,} were not read so far)"
    sentence += f", {amount_text(report.storage)} {report.currency} for storage" if report.storage else ""
    print_text(sentence)
    if report.warming:
        print_text(f"not in the rows: {report.warming:,} prompt tokens of requests that warmed the cache")
    if report.loaded:
        parts = ", ".join(f"{tokens:,} from {medium}" for medium, tokens in report.loaded.items())
        print_text(f"loaded by engines, of the reused tokens that kvproxy predicted: {parts}")
    if report.diagnoses:
        _print_diagnoses(report)
    reported = [row for row in report.rows if row.result != UNREPORTED]
    if reported and all(row.cost is None for row in reported):
        print_text(_NO_PRICE)


def _print_diagnoses(report: "LedgerReport") -> None:
    agreed = sum(row.agreed for row in report.diagnoses)
    compared = agreed + sum(row.disagreed for row in report.diagnoses)
    share = f" ({percent(agreed / compared)})" if compared else ""
    print_text(f"The provider and the ledger agree on {agreed:,} of {compared:,} compared prompts{share}:")
    for row in report.diagnoses:
        print_text(f"  {row.diagnosis}: {plural(row.turns, 'turn')}, {row.disagreed:,} different in the ledger")


def _print_savings(report: "SavingsReport", by: str, selection: "SumsFilter", layout: ListLayout, empty: str) -> None:
    total = [report.total] if report.total is not None and len(report.rows) > 1 else []
    has_price = any(row.money is not None for row in report.rows)
    rows: list[Row] = [
        {
            text_column(by.capitalize(), field="name"): _group_name(row, by),
            "Requests#": row.requests,
            number_column("Hits", "answered"): row.answered,
            "Prompt tokens#?": row.prompt_tokens if row.hits else None,
            number_column("Response tokens", "completion_tokens", optional=True): (
                row.completion_tokens if row.hits else None
            ),
            number_column("Reused tokens", "reused_tokens", optional=has_price): row.reused_tokens,
            number_column("Seconds", "seconds", optional=has_price): _seconds_text(row),
            number_column(f"Spent {report.currency}", "spent", hides_empty=True): _spent_text(row),
            number_column(f"Saved {report.currency}", "money", hides_empty=True): _money_text(row),
            number_column(f"At least {report.currency}", "least_money", optional=True, hides_empty=True): money(
                row.least_money
            ),
        }
        for row in [*report.rows, *total]
    ]
    records = [asdict(row) for row in [*report.rows, *total]]
    empty = "no request has a tag: clients set them with x-kvproxy-tags" if by == "tag" else empty
    print_table(rows, empty=empty, layout=layout, records=records)
    _print_counted_days(selection)
    if report.rows:
        _print_notes(report, has_price=has_price)
    if by == "tenant" and any(_DIGEST.fullmatch(row.name) for row in report.rows):
        print_text("A digest is a client without a name: kvproxy keys add names clients.")


def _group_name(row: "Saving", by: str) -> str:
    return tenant_name(row.name) if by == "tenant" else group_name(row.name, by)


def _spent_text(row: "Saving") -> Formatted | None:
    return money(row.spent, leaves_out_models=row.unpriced_requests > 0)


def _money_text(row: "Saving") -> Formatted | None:
    # Without the tokens of all hits, the money is no bound.
    return money(
        row.money, is_bound=bool(row.uncertain_tokens) and not row.unreported_hits, leaves_out_models=_has_unpriced(row)
    )


def _seconds_text(row: "Saving") -> Formatted | None:
    if row.seconds is None:
        return Formatted("not known yet", None) if row.unmeasured_tokens else None
    least, most = f"{row.least_seconds:z,.1f}", f"{row.most_seconds:z,.1f}"
    interval = "" if least == most else f" ({least} to {most})"
    return Formatted(f"{row.seconds:z,.1f}{interval}", row.seconds)


def _print_notes(report: "SavingsReport", *, has_price: bool) -> None:
    from kvproxy.journal.prefill_time import MIN_REQUESTS

    if report.refused:
        print_text(
            f"{plural(report.refused, 'refused request')} not counted; kvproxy log top counts them, and kvproxy keys ls"
            " those of known clients. Failed requests count."
        )
    unmeasured = sum(row.unmeasured_tokens for row in report.rows)
    if unmeasured:
        print_text(
            f"The prefill time of {plural(unmeasured, 'reused token')} is not known yet. It requires {MIN_REQUESTS} requests"
            " per model with different lengths, as streams if the server reports no prefill time."
        )
    priced = sum(row.priced_tokens for row in report.rows)
    cached = sum(row.cached_tokens for row in report.rows)
    whose = (
        " on models with a price of cached tokens"
        if priced < sum(row.prompt_tokens or 0 for row in report.rows)
        else ""
    )
    if cached:
        print_text(
            f"Money: {percent(cached / priced)} of the prompt tokens of hits{whose} are priced as cached. Without kvproxy, the"
            " backend's prefix cache would have reused them, because earlier prompts began with them."
        )
    if (total := report.total) is not None and total.answered and total.reused_tokens:
        owed = []
        by_hits = total.hit_seconds
        if not total.unmeasured_tokens and by_hits is not None and (total.seconds or 0.0) > by_hits:
            owed.append(f"{by_hits:z,.1f} s")
        # Two sums of the same amounts, in another order, differ in the last digits.
        if total.money is not None and total.hit_money is not None and not math.isclose(total.money, total.hit_money):
            owed.append(f"{amount_text(total.hit_money)} {report.currency}")
        if owed:
            print_text(f"Hits saved {' and '.join(owed)} of all; the backend's own prefix cache saved the rest.")
    if partial := sum(row.partial_hits for row in report.rows):
        print_text(
            f"{plural(partial, 'request')} of arrays had some inputs from the cache: tokens and money include these inputs if"
            " their tokens are known. If several inputs were computed at once, the tokens of each are an estimated share."
        )
    if unreported := sum(row.unreported_hits for row in report.rows):
        print_text(
            f"{plural(unreported, 'hit')} without reported tokens{', also of inputs of arrays' if partial else ''}: tokens and"
            f" money do not include {'it' if unreported == 1 else 'them'}, because no tokens are stored with the cached answers."
        )
    if has_price and (unpriced := sum(row.unpriced_requests for row in report.rows)):
        print_text(f"Spent does not include {plural(unpriced, 'request')} of models without a price.")
    if has_price and (unreported := sum(row.unreported_requests for row in report.rows)):
        print_text(f"Spent does not include {plural(unreported, 'request')} without reported usage.")
    if has_price and (estimated := sum(row.estimated_requests for row in report.rows)):
        print_text(f"Spent counts {plural(estimated, 'request')} without reported usage by an estimate of the tokens.")
    if has_price and (standard := sum(row.standard_priced_requests for row in report.rows)):
        print_text(
            f"At the price of the standard tier: {plural(standard, 'request')} of service tiers without a known price, or"
            " without a record."
        )
    if any(row.uncertain_tokens and not row.unreported_hits for row in report.rows):
        print_text("At most: the share of cached tokens is not reported, or the model has no price of cached tokens.")
    if not has_price and any(row.unpriced_requests or _has_unpriced(row) for row in report.rows):
        print_text(_NO_PRICE)
    elif has_price and any(_has_unpriced(row) for row in report.rows):
        print_text(f"Not in the money: {_unpriced_text(report.total)} of models without a price.")
    if report.semantic and report.wrong is None:
        least = " At least counts no semantic hit." if has_price else ""
        print_text(
            f"Wrong semantic hits: unknown, because of {plural(report.semantic, 'served hit')}, none was compared with a fresh"
            f" response.{least}"
        )
    elif report.semantic and report.wrong is not None:
        print_text(report.wrong.sentence)
    if report.marked_wrong:
        count = "Semantic hits" if report.total is None else plural(report.total.wrong_hits, "recorded semantic hit")
        print_text(
            f"A person marked {plural(report.marked_wrong, 'stored response')} wrong (kvproxy cache reject)."
            f" {count} on {'it' if report.marked_wrong == 1 else 'them'} saved nothing: tokens, seconds, and money exclude them."
        )


def _has_unpriced(row: "Saving") -> bool:
    return bool(row.unpriced_hits or row.unpriced_reused_tokens)


def _unpriced_text(total: "Saving | None") -> str:
    if total is None:
        return "hits and reused tokens"
    counts = [(total.unpriced_hits, "hit"), (total.unpriced_reused_tokens, "reused token")]
    return " and ".join(plural(count, noun) for count, noun in counts if count)


def ledger_rows(report: "LedgerReport") -> Iterator[Row]:
    for row in report.rows:
        yield {
            text_column("Result"): row.result,
            "Tokens#": row.tokens,
            "Share#": percent(row.share),
            number_column(f"Lost {report.currency}", "cost", hides_empty=True): money(row.cost),
            text_column("Meaning"): CAUSES.get(row.result, "The backend had them."),
        }
