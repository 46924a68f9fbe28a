"""Forecasts the cost of the running month."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

_DAYS = 7
_LEAST_DAYS = 2


@dataclass(frozen=True, slots=True)
class MonthForecast:
    """The cost of a month if each further day costs the mean of the last whole days.

    Attributes:
        month: such as 2026-11.
        cost: `spent`, and `per_day` for the rest of the month.
        spent: cost of the month until now.
        per_day: mean cost of the last `days` whole days.
    """

    month: str
    cost: float
    spent: float
    per_day: float
    days: int


def forecast_month(costs: Mapping[date, float], now: datetime) -> MonthForecast | None:
    """Return the forecast of the month of `now` from the cost of each day; None without enough whole days.

    The first day may lack its earlier requests, so it is no whole day.
    """
    today = now.date()
    days = min(_DAYS, (today - min(costs, default=today)).days - 1)
    if days < _LEAST_DAYS:
        return None
    per_day = sum(costs.get(today - timedelta(days=number), 0.0) for number in range(1, days + 1)) / days
    first = today.replace(day=1)
    spent = sum(cost for day, cost in costs.items() if first <= day <= today)
    end = datetime.combine((first + timedelta(days=31)).replace(day=1), time(), now.tzinfo)
    rest = (end - now) / timedelta(days=1)
    return MonthForecast(f"{today:%Y-%m}", spent + per_day * rest, spent, per_day, days)
