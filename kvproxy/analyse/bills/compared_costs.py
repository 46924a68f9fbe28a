"""Compares reports of costs with the money of requests, in the currency of the settings."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime

from kvproxy.analyse.bills.reported_costs import CLOUDS, CostReport
from kvproxy.journal.groups import COLUMN, PERIODS, group_fields, has_period, in_order
from kvproxy.journal.sessions.spending_report import SpendingReport, expense, group_row
from kvproxy.journal.spending import PaidRequest, Spending
from kvproxy.providers.cost_comparison import (
    CostComparison,
    ReportedCost,
    by_size,
    compare_costs,
    rounding_error,
    unrounded_difference,
    with_web_searches,
)
from kvproxy.providers.prices import is_dated
from kvproxy.providers.published_prices import provider_of
from kvproxy.settings.journal import LIST_CURRENCY, JournalSettings, PriceSettings
from kvproxy.units import letters_of, period_of_sum

_DAY = 86_400.0
_WEB_SEARCH = 0.01
"""List price of a web search of Anthropic in US dollars."""
_Amount = tuple[str, ReportedCost | None]
_DATE = re.compile(r"-\d{4}-?\d{2}-?\d{2}$")


def compare_reports(
    bill: SpendingReport,
    reports: Sequence[CostReport],
    paid: Sequence[PaidRequest],
    prices: Mapping[str, PriceSettings],
    settings: JournalSettings,
    period: tuple[float | None, float | None],
) -> SpendingReport:
    """Return the bill of requests with the costs of a period in reports, and how they differ from the money here."""
    amounts = [amount for report in reports for amount in _with_rounding(report.costs)]
    currencies = {currency for currency, _ in amounts}
    if not paid and len(currencies) == 1 and "" not in currencies:
        # Without usage, nothing is compared or converted.
        settings = settings.model_copy(update={"currency": currencies.pop(), "usd_rate": None})
        bill = replace(bill, currency=settings.currency)
    converted = _converted_costs(amounts, settings)
    foreign = Counter(name for name, cost in amounts if cost is not None and settings.exchange_rate(name) is None)
    costs = [cost for cost in converted if is_between(cost.time, *period)]
    undated = 0 if period == (None, None) else sum(cost.time is None for cost in converted)
    fee = bill.web_searches * _WEB_SEARCH * (settings.exchange_rate(LIST_CURRENCY) or 0.0)
    compared = replace(
        with_web_searches(_compare(costs, paid, prices), fee, costs),
        left_out=len(amounts) - len(converted),
        left_out_currencies=dict(foreign),
        undated=undated,
    )
    return replace(_with_reported_costs(bill, costs), reported=compared)


def is_between(time: float | None, since: float | None, until: float | None) -> bool:
    """Whether a time is in a period; an unknown one is only in the period without bounds."""
    if time is None:
        return since is None and until is None
    return (since or 0.0) <= time < (math.inf if until is None else until)


def _compare(
    costs: Sequence[ReportedCost], paid: Sequence[PaidRequest], prices: Mapping[str, PriceSettings]
) -> CostComparison:
    if not costs or not paid:
        return CostComparison(sum(cost.amount for cost in costs) if costs else None, None, _services(costs))
    has_cloud = any(cost.provider in CLOUDS for cost in costs)
    providers = [_usage_provider(request, has_cloud) for request in paid]
    one_sided, unpriced = _one_sided_providers(costs, set(providers)), _unpriced_models(paid, prices)
    both = [(request, provider) for request, provider in zip(paid, providers, strict=True) if provider not in one_sided]
    compared, apart = list[ReportedCost](), defaultdict[str, float](float)
    of_unpriced = 0.0
    for cost in costs:
        if not cost.service and (provider := _cost_provider(cost)) in one_sided:
            apart[str(provider)] += cost.amount
        elif not cost.service and _model_of_usage(cost.model, unpriced) in unpriced:
            of_unpriced += cost.amount
        else:
            compared.append(cost)
    for provider in one_sided - apart.keys():
        of_provider = [request for request, other in zip(paid, providers, strict=True) if other == provider]
        apart[provider] = -sum(_money_by_day(of_provider, prices).values())
    comparison = _compare_by_day(compared, both, prices)
    return replace(
        comparison,
        reported=sum(cost.amount for cost in costs),
        difference=(comparison.difference or 0.0) + sum(apart.values()) + of_unpriced,
        providers={name: amount for name, amount in sorted(apart.items()) if amount},
        unpriced=of_unpriced,
    )


def _compare_by_day(
    costs: Sequence[ReportedCost],
    paid: Sequence[tuple[PaidRequest, str | None]],
    prices: Mapping[str, PriceSettings],
) -> CostComparison:
    """Compare costs with the money of requests and their providers. If one is unknown, the days have no provider."""
    names = {_cost_provider(cost) for cost in costs if not cost.service} | {provider for _, provider in paid}
    are_known = None not in names
    named = [replace(cost, provider=(_cost_provider(cost) or "") if are_known else "") for cost in costs]
    by_provider: defaultdict[str, list[PaidRequest]] = defaultdict(list)
    for request, provider in paid:
        by_provider[provider or "" if are_known else ""].append(request)
    money = {
        (provider, day): amount
        for provider, requests in by_provider.items()
        for day, amount in _money_by_day(requests, prices).items()
    }
    comparison = compare_costs(named, money)
    days = comparison.rest_by_day
    unpriced = [request for request, _ in paid if request.price(prices) is None]
    is_only_rest = comparison.rest and not comparison.without_usage and not comparison.without_costs
    of_rest = [request for request in unpriced if not days or days.get(_day_of(request), 0.0) > 0]
    return replace(
        comparison,
        rest_by_model=_rest_by_model(costs, [request for request, _ in paid], prices) if is_only_rest else {},
        rest_unpriced=sum(request.least_count for request in of_rest),
        unpriced_models=sorted({request.model for request in of_rest}),
    )


def _rest_by_model(
    costs: Sequence[ReportedCost], paid: Sequence[PaidRequest], prices: Mapping[str, PriceSettings]
) -> dict[str, float]:
    """Return the difference of the costs of tokens from the money here by model; empty if a cost has no model of the usage."""
    models = {request.model for request in paid}
    of_tokens = [(_model_of_usage(cost.model, models), cost) for cost in costs if not cost.service]
    if not all(model in models for model, _ in of_tokens):
        return {}
    rests: defaultdict[str, float] = defaultdict(float)
    for model, cost in of_tokens:
        rests[model] += cost.amount if cost.list_amount is None else cost.list_amount
    for model, money in _sum_money(paid, prices, lambda request: request.model).items():
        rests[model] -= money
    return by_size(rests)


def _one_sided_providers(costs: Iterable[ReportedCost], of_usage: Set[str | None]) -> set[str]:
    """Return the providers that only the costs or only the usage has; a side with an unknown provider may have each."""
    of_costs = {_cost_provider(cost) for cost in costs if cost.provider or not cost.service}
    only_there = of_costs - of_usage if None not in of_usage else set()
    only_here = of_usage - of_costs if None not in of_costs and of_costs else set()
    return {provider for provider in only_there | only_here if provider is not None}


def _services(costs: Iterable[ReportedCost]) -> dict[str, float]:
    services: defaultdict[str, float] = defaultdict(float)
    for cost in costs:
        if cost.service:
            services[cost.service] += cost.amount
    return dict(services)


def _cost_provider(cost: ReportedCost) -> str | None:
    return cost.provider or (provider_of(_plain_name(cost.model)) if cost.model else None)


def _usage_provider(request: PaidRequest, has_cloud: bool) -> str | None:
    """Return the provider that bills a request; None if it is unknown, since clouds offer the models of other providers."""
    provider = request.provider or provider_of(request.model)
    return provider if request.provider or provider in CLOUDS or not has_cloud else None


def _unpriced_models(paid: Sequence[PaidRequest], prices: Mapping[str, PriceSettings]) -> set[str]:
    """Return the models of which no request has a price."""
    priced = {request.model for request in paid if request.price(prices) is not None}
    return {request.model for request in paid} - priced


def _with_rounding(amounts: Sequence[_Amount]) -> list[_Amount]:
    """Return the amounts of a report with their rounding errors."""
    rounding = rounding_error(cost.amount for _, cost in amounts if cost is not None)
    return [(currency, cost and replace(cost, rounding=rounding)) for currency, cost in amounts]


def _converted_costs(amounts: Iterable[_Amount], settings: JournalSettings) -> list[ReportedCost]:
    """Return the costs in the currency of the settings, without unreadable ones and those without an exchange rate."""
    return [
        cost
        for currency, reported in amounts
        if reported is not None and (cost := _converted(currency, reported, settings)) is not None
    ]


def _with_reported_costs(report: SpendingReport, costs: Sequence[ReportedCost]) -> SpendingReport:
    """Return the bill with the money of a report of costs in each group, and how it differs from the money of usage."""
    fields = group_fields(report.by)
    rows = {tuple(row.groups.values()): row for row in report.rows}
    models, projects = ({row.groups.get(name, "") for row in report.rows} for name in ("model", "project"))
    amounts: defaultdict[int, list[ReportedCost]] = defaultdict(list)
    groups: dict[int, Spending] = {}
    for cost in costs:
        known = replace(cost, model=_model_of_usage(cost.model, models), project=_project_of_usage(cost, projects))
        names: dict[str, str] = {name: _group_name(known, name) for name in fields}
        is_new = tuple(names.values()) not in rows
        row = group_row(rows, names)
        if is_new:
            row.requests = None
        groups[id(row)] = row
        amounts[id(row)].append(cost)
    # Local days of requests are no UTC days of costs.
    is_comparable = not has_period(fields) or report.zone in (None, "UTC")
    for key, row in groups.items():
        _add_reported(row, amounts[key], is_comparable=is_comparable)
    _add_reported(report.total, costs, is_comparable=True)
    if not report.rows:
        report.total.requests = None
    return replace(
        report,
        rows=in_order(rows.values(), fields, expense),
        has_utc_days=report.has_utc_days or (has_period(fields) and any(cost.day for cost in costs)),
    )


def _group_name(cost: ReportedCost, by: str) -> str:
    """Return the name of a cost's group; empty if unknown."""
    if by in PERIODS:
        if cost.time is None:
            return cost.columns.get(by, "")
        return period_of_sum(datetime.fromtimestamp(cost.time, UTC).date(), cost.seconds, by)
    if by.startswith(COLUMN):
        return cost.columns.get(letters_of(by.removeprefix(COLUMN)), "")
    return str(getattr(cost, by, ""))


def _add_reported(row: Spending, costs: Sequence[ReportedCost], *, is_comparable: bool) -> None:
    row.reported_cost = sum(cost.amount for cost in costs) if costs else None
    if costs and row.cost is not None and is_comparable:
        row.reported_difference = unrounded_difference(costs, row.cost)


def _model_of_usage(name: str, models: Collection[str]) -> str:
    """Return the model's name in a report of usage, as `claude-opus-4-5-20251101` for `Claude Opus 4.5`."""
    equal = [model for model in models if _plain_name(model) == _plain_name(name)]
    return name if name in models or len(equal) != 1 else equal[0]


def _project_of_usage(cost: ReportedCost, projects: Collection[str]) -> str:
    """Return the project's name in a report of usage, which may be the id beside the name."""
    id = cost.columns.get("projectid", "")
    return id if id in projects and cost.project not in projects else cost.project


def _plain_name(model: str) -> str:
    return _DATE.sub("", re.sub(r"[ ._]+", "-", model.strip().lower()))


def _converted(currency: str, cost: ReportedCost, settings: JournalSettings) -> ReportedCost | None:
    """Return a cost in the currency of the settings; None without an exchange rate."""
    if (rate := settings.exchange_rate(currency)) is None:
        return None
    listed = None if cost.list_amount is None else cost.list_amount * rate
    return replace(cost, amount=cost.amount * rate, list_amount=listed, rounding=cost.rounding * rate)


def _money_by_day(paid: Iterable[PaidRequest], prices: Mapping[str, PriceSettings]) -> dict[str, float]:
    """Return money by UTC day; that of requests without a day, and of longer periods, has an empty name."""
    return _sum_money(paid, prices, _day_of)


def _sum_money(
    paid: Iterable[PaidRequest], prices: Mapping[str, PriceSettings], name_of: Callable[[PaidRequest], str]
) -> dict[str, float]:
    sums: dict[str, Spending] = {}
    for request in paid:
        name = name_of(request)
        sums.setdefault(name, Spending(name)).add(request, request.price(prices))
    return {name: spending.cost or 0.0 for name, spending in sums.items()}


def _day_of(request: PaidRequest) -> str:
    """Return the UTC day; empty without one, and for a longer period."""
    has_day = is_dated(request.time) and request.period <= _DAY
    return datetime.fromtimestamp(request.time, UTC).date().isoformat() if has_day else ""
