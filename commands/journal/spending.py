"""Prints the cost of requests by group."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvproxy.commands.formatting import Formatted, amount_text, local_time, money, percent
from kvproxy.commands.output import Output
from kvproxy.commands.tables import Column, ListLayout, Row, digest_column, number_column, print_table
from kvproxy.journal.groups import COLUMN
from kvproxy.journal.sessions.ledger import main_cause
from kvproxy.settings.journal import LIST_CURRENCY
from kvproxy.units import first_names, plural

if TYPE_CHECKING:
    from kvproxy.journal.sessions.session_reader import Session
    from kvproxy.journal.sessions.spending_report import SpendingReport
    from kvproxy.journal.spending import Spending

SET_TIERS = 'set service_tiers in [journal.prices."MODEL"]'
SPENDING = ("kvproxy.commands.journal.spending:spending_fields",)
_SHOWN_MODELS = 3
NO_BILL = "no paid requests yet"


def spending_output(report: "SpendingReport", layout: ListLayout, empty: str = NO_BILL) -> Output:
    """Return the bill as an output; `empty` is printed if it has no rows. Its note says what the bill leaves out."""
    total = [report.total] if len(report.rows) > 1 else []
    rows = [_spending_row(row, report) for row in [*report.rows, *total]]
    records = [group_record(asdict(row), report.by) | {"currency": report.currency} for row in [*report.rows, *total]]
    return Output(
        asdict(report),
        lambda: print_table(rows, empty=empty, layout=layout, records=records),
        records=records[: len(report.rows)],
        fields=spending_fields({"by": report.by}),
        note="\n".join(_notes(report)) or None,
    )


def group_name(name: str, by: str) -> str:
    """Return the name of a group at a terminal, such as `(no team)` for requests without one."""
    return name or f"(no {by.removeprefix(COLUMN).replace('_', ' ')})"


def group_cells(name: str, groups: Mapping[str, str], by: str) -> dict[Column | str, object]:
    """Return the cells with the names of a group, one for each field of `by`; the first one is `name` for a sum of groups."""
    fields = by.split(",")
    if len(fields) == 1:
        return {digest_column(group_title(by), 40, field="name"): group_name(name, by)}
    names = [group_name(groups[field], field) for field in fields] if groups else [name, *([None] * (len(fields) - 1))]
    return {digest_column(group_title(field), 40, field=field): each for field, each in zip(fields, names, strict=True)}


def group_record(record: Mapping[str, Any], by: str) -> dict[str, Any]:
    """Return a flat record of a group: of several fields, each has a column of its own instead of the name."""
    fields = by.split(",")
    groups = record["groups"] or {}
    names = {field: groups.get(field) for field in fields} if len(fields) > 1 else {"name": record["name"]}
    return names | {name: value for name, value in record.items() if name not in ("name", "groups")}


def spending_fields(options: Mapping[str, object]) -> list[str]:
    """Return the names of the fields of a bill's records with these values of options."""
    from kvproxy.journal.spending import Spending

    return record_fields(Spending, options)


def record_fields(kind: type[Any], options: Mapping[str, object]) -> list[str]:
    """Return the names of the fields of `group_record`, for a dataclass of rows."""
    from kvproxy.operations.operation import field_names

    return [*group_record(dict.fromkeys(field_names(kind)), str(options.get("by") or "day")), "currency"]


def group_title(field: str) -> str:
    return field.removeprefix(COLUMN).replace("_", " ").capitalize()


def session_cost(session: "Session") -> Formatted | None:
    return money(session.cost, leaves_out_models=session.unpriced_turns + session.incomplete_turns > 0)


def removed_note(oldest: float) -> str:
    """Say from when on records are complete. `oldest` is in seconds since the epoch."""
    return f"since {local_time(oldest)}; older records were removed (journal.retention, journal.max_rows)"


def unpriced_note(requests: int, *, is_bound: bool = False) -> str:
    counted = _count(requests, is_bound)
    without = f"not in the money: {counted} of models without a price, or without one of audio tokens"
    return f'{without}; set [journal.prices."MODEL"]'


def _notes(report: "SpendingReport") -> Iterator[str]:
    total = report.total
    is_bound = total.requests is None
    if report.currency != LIST_CURRENCY and (total.cost, total.reported_cost) != (None, None):
        # In a pipe, the names of the columns do not depend on the currency.
        yield f"money in {report.currency}"
    if report.zone is not None and report.rows:
        yield f"local days ({report.zone}); savings --by day lists UTC days"
    if report.has_utc_days:
        yield "UTC days: the reports of usage and costs have sums of whole UTC days"
    if report.has_local_days:
        yield "days of ccusage: those of the time zone in which it ran"
    if report.complete_since is not None:
        yield removed_note(report.complete_since)
    if report.undated != 0:
        counted = "requests" if report.undated is None else plural(report.undated, "request")
        yield f"not in the period: {counted} without a date"
    if total.standard_priced:
        yield (
            f"at the price of the standard tier: {_count(total.standard_priced, is_bound)} of the service tiers"
            f" {', '.join(report.tiers_without_price)}; {SET_TIERS}"
        )
    yield from count_notes(total.unpriced, total.estimated, total.unreported, is_bound=is_bound)
    if total.reused_tokens and total.input_cost is not None and total.uncached_cost:
        yield _cache_note(total.uncached_cost, total.uncached_cost - total.input_cost, report.currency)
    if total.proxy_cost:
        sent = plural(total.proxy_requests, "request")
        yield (
            f"in the money, and not in the tokens: {amount_text(total.proxy_cost)} {report.currency} of {sent} of the proxy"
            " itself, such as keep-warm requests"
        )
    if report.regional:
        requests = _count(report.regional, is_bound)
        yield f"not in the money: the unknown surcharge of Anthropic for the region (inference_geo) of {requests}"
    if report.assumed_single:
        yield (
            f"at the price of a long prompt: {plural(report.assumed_single, 'row')} without a time and a number of requests; if"
            " they are sums, add a column requests, date, or month"
        )
    if report.assumed_short:
        yield (
            f"at the price of short prompts: {plural(report.assumed_short, 'sum')} of requests of unknown length, of models whose"
            " long prompts cost more"
        )
    if report.cut_sums:
        yield f"partly in the period: {plural(report.cut_sums, 'sum')}; the start of each decides whether it counts"
    if (forecast := report.forecast) is not None:
        yield (
            f"forecast of {forecast.month}: {amount_text(forecast.cost)} {report.currency}, which are"
            f" {amount_text(forecast.spent)} until now, and {amount_text(forecast.per_day)} for each further day, the mean of the"
            f" last {forecast.days} whole days"
        )
    if report.as_model is not None:
        yield f"as {report.as_model}: the same tokens with the same share of cached input, at today's prices"
    if report.web_searches:
        yield (
            f"not in the money: {_web_searches(report)} (web_search_requests), for which Anthropic's list price is 10 USD per"
            " 1,000"
        )
    if total.logged_cost is not None:
        yield _logged_note(total.logged_cost, total.logged_difference, report.currency)
    if report.other_currencies:
        names = ", ".join(report.other_currencies)
        unknown = f"the rate to {report.currency} is unknown (journal.currency, journal.usd_rate)"
        yield f"the logs state money in {names}, which is not compared: {unknown}"
    yield from _reported_note(report)
    if total.incomplete:
        yield f"not in the tokens and the money: the unknown input or output of {_count(total.incomplete, is_bound)}"


def _cache_note(uncached: float, saved: float, currency: str) -> str:
    effect = "saved" if saved >= 0 else "added"
    return (
        f"the provider's cache {effect} {amount_text(abs(saved))} {currency}, {percent(abs(saved) / uncached)} of the"
        f" {amount_text(uncached)} {currency} that the input costs without it"
    )


def _web_searches(report: "SpendingReport") -> str:
    return f"{report.web_searches:,} web search{'' if report.web_searches == 1 else 'es'}"


def _logged_note(logged: float, difference: float | None, currency: str) -> str:
    if difference is None:
        return f"the logs state {amount_text(logged)} {currency}, for requests without a price here"
    if not difference:
        return (
            f"the logs state {amount_text(logged)} {currency}; for requests with both figures, the prices here give the same,"
            " within rounding"
        )
    more = "more" if difference >= 0 else "less"
    return (
        f"the logs state {amount_text(logged)} {currency}; for requests with both figures, {amount_text(abs(difference))}"
        f" {currency} {more} than the prices here, as with discounts, other prices, or another service tier"
    )


def _reported_note(report: "SpendingReport") -> Iterator[str]:
    """Yield how a report of costs differs from the money here, and why; nothing without one."""
    if (costs := report.reported) is None:
        return
    if costs.undated:
        yield f"not in the period: {plural(costs.undated, 'amount')} of the report of costs without a date"
    causes = ", ".join(_left_out_amounts(report))
    left_out = f"; left out: {causes}" if causes else ""
    if costs.reported is not None and costs.difference is None:
        yield f"the report of costs has no tokens: give the report of usage, too, to compare them{left_out}"
        if costs.services:
            names = ", ".join(f"{amount_text(amount)} for {name}" for name, amount in costs.services.items())
            yield f"the report of costs has other costs than those of tokens: {names}"
        return
    if costs.reported is None or costs.difference is None:
        yield f"the report of costs is not compared: {causes or 'no amount is in the period'}"
        return
    unpriced, is_bound = costs.rest_unpriced, report.total.requests is None
    # Requests without a price only add to the report, and those of known models are a part of their own.
    is_of_unpriced = unpriced and costs.rest > 0 and not costs.unpriced
    models = first_names(costs.unpriced_models, _SHOWN_MODELS)
    rest = f", probably of {_count(unpriced, is_bound)} of models without a price ({models})" if is_of_unpriced else ""
    place = _largest(costs.rest_by_model, "of") + _largest(costs.rest_by_day, "on")
    parts = {
        **{f"for {name}": amount for name, amount in costs.services.items()},
        "of discounts": costs.discount,
        **{
            f"of {name} without {'costs there' if amount < 0 else 'usage here'}": amount
            for name, amount in costs.providers.items()
        },
        "of models without a price here": costs.unpriced,
        "on days without usage here": costs.without_usage,
        "on days without costs there": costs.without_costs,
        f"for {_web_searches(report)} at Anthropic's list price": costs.web_searches,
        f"not explained{place}{rest}; compare prices and tiers (kvproxy prices show)": costs.rest,
    }
    reasons = [
        f"{'-' if amount < 0 else '+'}{amount_text(abs(amount))} {name}" for name, amount in parts.items() if amount
    ]
    stated = f"the report of costs states {amount_text(costs.reported)} {report.currency}"
    if not reasons:
        yield f"{stated}, as the prices here give, within rounding{left_out}"
        return
    more = "more" if costs.difference >= 0 else "less"
    difference = f"{amount_text(abs(costs.difference))} {more} than the prices here"
    yield f"{stated}, {difference}: {', '.join(reasons)}{left_out}"


def left_out_of_bill(report: "SpendingReport") -> Iterator[str]:
    """Yield a note for each kind of request that the money of a bill excludes."""
    total, is_bound = report.total, report.total.requests is None
    if without := total.unpriced + total.unreported + total.incomplete:
        yield f"{_count(without, is_bound)} without money"
    if report.undated != 0:
        yield "requests without a date"
    if report.other_currencies:
        yield f"money in {', '.join(report.other_currencies)}"
    if report.reported is not None and report.reported.undated:
        yield f"{plural(report.reported.undated, 'amount')} without a date"
    yield from _left_out_amounts(report)


def _left_out_amounts(report: "SpendingReport") -> Iterator[str]:
    """Yield the numbers of amounts that the report of costs has, and the bill leaves out, by cause."""
    if (costs := report.reported) is None:
        return
    if unreadable := costs.left_out - sum(costs.left_out_currencies.values()):
        yield f"{plural(unreadable, 'amount')} unreadable"
    for name, count in costs.left_out_currencies.items():
        rate = f"in {name}, whose rate to {report.currency} is unknown (journal.currency, journal.usd_rate)"
        yield f"{plural(count, 'amount')} {rate if name else 'without a currency'}"


def _largest(rests: Mapping[str, float], preposition: str) -> str:
    """Return the model or the day with the largest difference, of several ones."""
    return f", most {preposition} {next(iter(rests))}" if len(rests) > 1 else ""


def count_notes(unpriced: int, estimated: int, unreported: int, *, is_bound: bool = False) -> Iterator[str]:
    """Yield sentences about requests whose money is unknown or an estimate; `is_bound`: there may be more."""
    if unpriced:
        yield unpriced_note(unpriced, is_bound=is_bound)
    if estimated:
        yield f"estimated: tokens and money of {_count(estimated, is_bound)} without reported usage"
    if unreported:
        yield f"not in the tokens and the money: {_count(unreported, is_bound)} without reported usage"


def _count(requests: int, is_bound: bool) -> str:
    return f"{'at least ' if is_bound else ''}{plural(requests, 'request')}"


def _spending_row(row: "Spending", report: "SpendingReport") -> Row:
    is_priced_in_part = row.unpriced > 0
    cause = main_cause(row.lost, row.reused_tokens)
    return {
        **group_cells(row.name, row.groups, report.by),
        number_column("Requests", "requests", hides_empty=True): row.requests,
        number_column("Input", "input_tokens", hides_empty=True): row.input_tokens,
        number_column("Cached", "cached_share", hides_empty=True): percent(row.reused_tokens / row.input_tokens)
        if row.input_tokens and row.reused_tokens is not None
        else None,
        number_column("Written", "written_tokens", optional=True): row.written_tokens,
        number_column("Output", "output_tokens", hides_empty=True): row.output_tokens,
        number_column(f"Input {report.currency}", "input_cost", optional=True): money(row.input_cost),
        number_column(f"Uncached {report.currency}", "uncached_cost", optional=True): money(row.uncached_cost),
        number_column(f"Output {report.currency}", "output_cost", optional=True): money(row.output_cost),
        number_column(report.currency, "cost"): money(row.cost, leaves_out_models=is_priced_in_part),
        number_column(f"Logged {report.currency}", "logged_cost", optional=True, hides_empty=True): money(
            row.logged_cost
        ),
        number_column("Difference", "logged_difference", optional=True, hides_empty=True): money(row.logged_difference),
        number_column(f"Reported {report.currency}", "reported_cost", hides_empty=True): money(row.reported_cost),
        number_column("Reported more", "reported_difference", hides_empty=True): money(row.reported_difference),
        number_column(f"As {report.as_model}", "as_model_cost", hides_empty=True): money(row.as_model_cost),
        number_column("As more", "as_model_difference", hides_empty=True): money(row.as_model_difference),
        number_column(f"Lost {report.currency}", "lost_cost", optional=True): money(row.lost_cost),
        "Lost most to?": cause,
        number_column(f"Its {report.currency}", "lost_most_cost", optional=True): money(
            None if cause is None else row.lost_costs.get(cause)
        ),
    }
