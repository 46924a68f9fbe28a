"""Sums the cost of requests by one or several fields, such as day and model."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime

from kvproxy.apis.modalities import region_of
from kvproxy.journal.groups import group_fields, has_period, in_order, joined_names
from kvproxy.journal.sessions.month_forecast import MonthForecast, forecast_month
from kvproxy.journal.spending import PaidRequest, Spending
from kvproxy.providers.cost_comparison import CostComparison
from kvproxy.providers.prices import has_tier_price
from kvproxy.providers.regional_prices import region_factor
from kvproxy.settings.journal import PriceSettings


@dataclass(frozen=True, slots=True)
class SpendingReport:
    """Spending by group: days in order, other groups with the most expensive first.

    Attributes:
        by: fields of `group_fields`, separated by commas.
        complete_since: time of the oldest record in seconds since the epoch, if older records of the period were removed.
        tiers_without_price: service tiers whose requests have the price of the standard tier, because theirs is unknown.
        zone: time zones of the local days, such as CET or `CEST, CET`; None for other groups.
        has_utc_days: a report of usage has sums of whole UTC days.
        has_local_days: a report of usage has sums of days of an unknown time zone, such as that of ccusage.
        reported: how a provider's report of costs differs; None without one.
        undated: number of requests without a date, which a period leaves out; None if a report of usage does not state it.
        regional: number of requests with inference in a region whose surcharge is unknown.
        web_searches: number of web searches in the usage of Anthropic's requests, whose price the money excludes.
        as_model: model whose cost of the same tokens the rows have, too.
        assumed_single: number of rows of logs with the price of a long prompt that state neither a time nor a number of requests.
        assumed_short: number of sums with the price of short prompts because the number of their requests is unknown, of models
            whose long prompts cost more.
        cut_sums: number of sums of a time that is only partly in the period; their start decides.
        forecast: the cost of the running month; None for other groups than months, and without enough days.
        other_currencies: those of money that logs state, without an exchange rate, so that it is left out.
    """

    by: str
    rows: list[Spending]
    total: Spending
    currency: str
    complete_since: float | None = None
    tiers_without_price: list[str] = field(default_factory=list)
    zone: str | None = None
    has_utc_days: bool = False
    has_local_days: bool = False
    reported: CostComparison | None = None
    undated: int | None = 0
    regional: int = 0
    web_searches: int = 0
    as_model: str | None = None
    assumed_single: int = 0
    assumed_short: int = 0
    cut_sums: int = 0
    other_currencies: list[str] = field(default_factory=list)
    forecast: MonthForecast | None = None


def spending_report(
    requests: Iterable[PaidRequest],
    by: str,
    prices: Mapping[str, PriceSettings],
    currency: str,
    as_model: str | None = None,
    now: datetime | None = None,
) -> SpendingReport:
    """Sum the requests by group, each at the price of its time and length. See `SpendingReport` for `by` and `as_model`.

    With `now`, a bill by month has the forecast of its month.
    """
    fields = group_fields(by)
    rows: dict[tuple[str, ...], Spending] = {}
    total = Spending("all")
    untiered = set[str]()
    zones: dict[str | None, None] = {}
    has_utc_days = has_local_days = False
    regional = 0
    rounding, costs = defaultdict[int, float](float), defaultdict[date, float](float)
    for request in requests:
        groups: dict[str, str] = {name: request.group_name(name) for name in fields}
        price = request.price(prices)
        tier = request.service_tier
        regional += request.least_count if region_factor(region_of(request.modalities)) is None else 0
        standard_priced = 0
        if price is not None and tier is not None and not has_tier_price(request.model, prices, request.time, tier):
            untiered.add(tier)
            standard_priced = request.least_count
        if has_period(groups):
            has_local_days = has_local_days or request.is_of_local_day
            has_utc_days = has_utc_days or (request.is_of_utc_day and not request.is_of_local_day)
            zones[None if request.is_of_utc_day or (at := request.moment) is None else at.tzname()] = None
        if now is not None and price is not None and (moment := request.moment) is not None:
            costs[moment.date()] += request.cost_at(price) or 0.0
        for row in (group_row(rows, groups), total):
            row.add(request, price)
            rounding[id(row)] += request.logged_rounding
            row.standard_priced += standard_priced
            if as_model is not None:
                row.add_cost_as(request.cost_as(as_model, prices), None if price is None else request.cost_at(price))
    for row in (*rows.values(), total):
        row.drop_rounding(rounding[id(row)])
    return SpendingReport(
        by,
        in_order(rows.values(), fields, expense),
        total,
        currency,
        tiers_without_price=sorted(untiered),
        zone=", ".join(filter(None, zones)) or None,
        has_utc_days=has_utc_days,
        has_local_days=has_local_days,
        regional=regional,
        as_model=as_model,
        forecast=None if now is None or "month" not in fields else forecast_month(costs, now),
    )


def group_row(rows: dict[tuple[str, ...], Spending], groups: dict[str, str]) -> Spending:
    """Return the row of a group, which is added if it is missing."""
    return rows.setdefault(tuple(groups.values()), Spending(joined_names(groups.values()), groups=groups))


def expense(row: Spending) -> tuple[float, int]:
    """Return the cost of a row for the order of rows, and its tokens."""
    cost = row.reported_cost if row.cost is None else row.cost
    return cost or 0.0, row.input_tokens or 0
