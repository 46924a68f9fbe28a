"""Compares reports of costs with the money of requests, in the currency of the settings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from kvproxy.analyse.log_formats.cost_reports import CostReport
from kvproxy.journal.spending import PaidRequest, Spending
from kvproxy.providers.cost_comparison import CostComparison, ReportedCost, compare_costs
from kvproxy.providers.prices import is_dated
from kvproxy.settings.journal import LIST_CURRENCY, JournalSettings, PriceSettings

_DAY = 86_400.0


def compare_reports(
    reports: Sequence[CostReport],
    paid: Iterable[PaidRequest],
    prices: Mapping[str, PriceSettings],
    settings: JournalSettings,
) -> CostComparison:
    """Return how the costs in reports differ from the money of the requests at the prices here."""
    amounts = [amount for report in reports for amount in report.costs]
    costs = [
        cost
        for currency, reported in amounts
        if reported is not None and (cost := _converted(currency, reported, settings)) is not None
    ]
    if not costs:
        return CostComparison(None, None, left_out=len(amounts))
    return replace(compare_costs(costs, _money_by_day(paid, prices)), left_out=len(amounts) - len(costs))


def _converted(currency: str, cost: ReportedCost, settings: JournalSettings) -> ReportedCost | None:
    """Return a cost in the currency of the settings; None without an exchange rate."""
    if currency == settings.currency:
        return cost
    rate = settings.usd_rate if currency == LIST_CURRENCY else None
    if rate is None:
        return None
    listed = None if cost.list_amount is None else cost.list_amount * rate
    return replace(cost, amount=cost.amount * rate, list_amount=listed)


def _money_by_day(paid: Iterable[PaidRequest], prices: Mapping[str, PriceSettings]) -> dict[str, float]:
    """Return money by UTC day; that of requests without a day, and of longer periods, has an empty name."""
    days: dict[str, Spending] = {}
    for request in paid:
        has_day = is_dated(request.time) and request.period <= _DAY
        day = datetime.fromtimestamp(request.time, UTC).date().isoformat() if has_day else ""
        days.setdefault(day, Spending(day)).add(request, request.price(prices))
    return {day: spending.cost or 0.0 for day, spending in days.items()}
