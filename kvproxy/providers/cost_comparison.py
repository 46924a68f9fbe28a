"""Compares a provider's report of costs with the money that the prices here give for its report of usage."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose

_HALF_CENT = 0.005
_EXACT = 1e-6  # Differences of sums of floats, as a share.


@dataclass(frozen=True, slots=True)
class ReportedCost:
    """An amount in a provider's report of costs.

    Attributes:
        day: UTC day such as 2026-11-21; empty if unknown, and for a longer period.
        service: what was billed besides tokens, such as web_search; empty for tokens.
        list_amount: the amount without a discount; None if the report does not state it.
        time: start of its period in seconds since the epoch; None if unknown.
        seconds: length of its period; 0 if unknown.
        project, model, client, team, line_item: empty if the report does not state them.
        service_tier: such as standard or batch; empty if the report does not state it.
        columns: cells of its row, by `letters_of` the heading.
        rounding: largest rounding error of the amount.
        provider: the provider or the cloud that bills it, such as aws; empty if the report does not state it.
    """

    amount: float
    day: str = ""
    service: str = ""
    list_amount: float | None = None
    time: float | None = None
    seconds: float = 0.0
    project: str = ""
    model: str = ""
    client: str = ""
    team: str = ""
    line_item: str = ""
    service_tier: str = ""
    rounding: float = 0.0
    provider: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CostComparison:
    """The sum of a report of costs, and how it differs from the money here.

    Attributes:
        reported: sum of the report of costs; None if all its amounts are left out, or outside the period.
        difference: this sum, less the money here. The sum of the parts below; None without the sum, or without any usage.
        services: money of services besides tokens, by name.
        discount: money of discounts, which is negative.
        providers: money by provider that only the report of costs has, or only the usage; the latter is negative.
        unpriced: money of models for which the usage has no price here.
        without_usage, without_costs: money of the days for which only the report of costs has amounts, and of those for which
            only the usage has; the latter is negative.
        rest: what has none of these causes; 0 within the rounding of the amounts.
        rest_by_day: this rest by UTC day, the largest first; empty if the days are unknown.
        rest_by_model: this rest by model, the largest first; empty if the models of amounts are unknown.
        rest_unpriced: number of requests without a price on the days of this rest; a bound if the usage states no number.
        unpriced_models: their models.
        web_searches: list price of the web searches in the usage, if the report has no service for them.
        left_out: number of amounts that are unreadable, or in a currency without a rate.
        left_out_currencies: the latter by currency, which is empty if it is unknown.
        undated: number of amounts without a date, which a period leaves out.
    """

    reported: float | None
    difference: float | None
    services: dict[str, float] = field(default_factory=dict)
    discount: float = 0.0
    providers: dict[str, float] = field(default_factory=dict)
    unpriced: float = 0.0
    without_usage: float = 0.0
    without_costs: float = 0.0
    rest: float = 0.0
    rest_by_day: dict[str, float] = field(default_factory=dict)
    rest_by_model: dict[str, float] = field(default_factory=dict)
    rest_unpriced: int = 0
    unpriced_models: list[str] = field(default_factory=list)
    web_searches: float = 0.0
    left_out: int = 0
    left_out_currencies: dict[str, int] = field(default_factory=dict)
    undated: int = 0


def compare_costs(costs: Sequence[ReportedCost], computed: Mapping[tuple[str, str], float]) -> CostComparison:
    """Return how reported costs differ from the money here, by provider and UTC day; an unknown day is empty.

    The provider is empty in all costs and all money here, or in none.
    """
    reported = sum(cost.amount for cost in costs)
    services: defaultdict[str, float] = defaultdict(float)
    by_day: defaultdict[tuple[str, str], float] = defaultdict(float)
    discount = 0.0
    for cost in costs:
        if cost.service:
            services[cost.service] += cost.amount
            continue
        listed = cost.amount if cost.list_amount is None else cost.list_amount
        discount += cost.amount - listed
        by_day[cost.provider, cost.day] += listed
    without_usage = without_costs = 0.0
    rests: defaultdict[str, float] = defaultdict(float)
    if all(day for _, day in (*by_day, *computed)):
        without_usage = sum(money for day, money in by_day.items() if day not in computed)
        without_costs = -sum(money for day, money in computed.items() if day not in by_day)
        for day, money in by_day.items():
            if day in computed:
                rests[day[1]] += money - computed[day]
    difference = reported - sum(computed.values())
    rest = difference - sum(services.values()) - discount - without_usage - without_costs
    if abs(rest) <= _rounding(costs) + _EXACT * abs(reported):
        rest = 0.0
        rests.clear()
    return CostComparison(
        reported,
        difference,
        dict(services),
        discount,
        without_usage=without_usage,
        without_costs=without_costs,
        rest=rest,
        rest_by_day=by_size(rests),
    )


def by_size(amounts: Mapping[str, float]) -> dict[str, float]:
    """Return amounts by name, the largest first."""
    return dict(sorted(amounts.items(), key=lambda item: -abs(item[1])))


def with_web_searches(comparison: CostComparison, fee: float, costs: Sequence[ReportedCost]) -> CostComparison:
    """Return the comparison with the list price of web searches as a part of its own, if the rest has room for it."""
    has_service = any("search" in name.lower() for name in comparison.services)
    rounding = _rounding(costs) + _EXACT * abs(comparison.reported or 0.0)
    if not fee or has_service or comparison.rest + rounding < fee:
        return comparison
    rest = comparison.rest - fee
    if abs(rest) <= rounding:
        return replace(
            comparison, web_searches=comparison.rest, rest=0.0, rest_by_day={}, rest_by_model={}, rest_unpriced=0
        )
    return replace(comparison, web_searches=fee, rest=rest)


def unrounded_difference(costs: Sequence[ReportedCost], computed: float) -> float:
    """Return the sum of reported costs, less the money here; 0 within the rounding of the amounts."""
    reported = sum(cost.amount for cost in costs)
    difference = reported - computed
    return 0.0 if abs(difference) <= _rounding(costs) + _EXACT * abs(reported) else difference


def rounding_error(amounts: Iterable[float]) -> float:
    """Return the largest rounding error of an amount: half a cent if all are in whole cents of their currency, else 0."""
    are_in_cents = all(isclose(round(amount, 2), amount, rel_tol=_EXACT) for amount in amounts)
    return _HALF_CENT if are_in_cents else 0.0


def _rounding(costs: Sequence[ReportedCost]) -> float:
    return sum(cost.rounding for cost in costs)
