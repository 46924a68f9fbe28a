"""The forecast of the running month."""

import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from kvproxy.journal.sessions.month_forecast import MonthForecast, forecast_month
from kvproxy.journal.sessions.spending_report import spending_report
from kvproxy.journal.spending import PaidRequest
from kvproxy.settings.journal import PriceSettings
from tests.commands.run import kvproxy, result
from tests.journal.sessions.requests import Sessions, provider, request, user

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY = 86_400.0


def days(*costs: float, last: date = NOON.date()) -> dict[date, float]:
    """Return the costs of the days that end with `last`."""
    return {last - timedelta(days=len(costs) - 1 - number): cost for number, cost in enumerate(costs)}


def test_further_days_cost_the_mean_of_the_last_whole_days() -> None:
    # Ten whole days, of which seven count, and today, which is half over.
    costs = days(100, 9, 9, 9, *[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 2)
    assert forecast_month(costs, NOON) == MonthForecast("2026-11", 157 + 9.5 * 4, 157, 4, 7)


def test_the_first_day_is_no_whole_day_and_a_day_without_requests_costs_nothing() -> None:
    costs = days(100, 3, 0, 6, 2)
    del costs[NOON.date() - timedelta(days=2)]
    assert forecast_month(costs, NOON) == MonthForecast("2026-11", 111 + 9.5 * 3, 111, 3, 3)
    assert forecast_month(days(100, 3, 2), NOON) is None
    assert forecast_month({}, NOON) is None


def test_only_the_days_of_the_month_are_spent() -> None:
    second = datetime(2026, 12, 2, 0, tzinfo=UTC)
    assert forecast_month(days(1, 1, 1, 1, 1, last=second.date()), second) == MonthForecast("2026-12", 32, 2, 1, 3)


def test_a_bill_by_month_has_the_forecast() -> None:
    prices = {"m": PriceSettings(input=1, output=0)}
    now = datetime.now(UTC).astimezone().replace(hour=12)
    paid = [
        PaidRequest((now - timedelta(days=ago)).timestamp(), name, "", "", 1_000_000, 0)
        for ago in range(4)
        for name in ("m", "unpriced")
    ]
    forecast = spending_report(paid, "month", prices, "USD", now=now).forecast
    assert forecast is not None
    assert (forecast.per_day, forecast.days) == (1, 2)
    assert spending_report(paid, "day", prices, "USD", now=now).forecast is None


def test_the_bill_of_a_journal_states_its_forecast(tmp_path: Path) -> None:
    sessions = Sessions(str(tmp_path / "journal.db"), m=PriceSettings(input=1, output=0))
    start = request([user("Hi.")], 1, 0, 0).arrived
    for ago in range(5, 0, -1):
        sessions.add(
            request([user(f"{ago}?")], 1_000_000, 0, time.time() - ago * DAY - start, completion=0, **provider())
        )
    sessions.close()
    (tmp_path / "kvproxy.toml").write_text("[journal.prices.m]\ninput = 1\noutput = 0\n")
    forecast = result("sessions", "--by", "month,model", "--data", tmp_path)["forecast"]
    assert (forecast["per_day"], forecast["days"]) == (pytest.approx(1), 4)
    done = kvproxy("sessions", "--by", "month", "--data", tmp_path)
    assert f"forecast of {forecast['month']}: " in done.stderr
    assert "the mean of the last 4 whole days" in done.stderr
    for options in (("--since", "30d"), ("--until", "today")):
        assert result("sessions", "--by", "month", *options, "--data", tmp_path)["forecast"] is None
