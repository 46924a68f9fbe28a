"""`kvproxy blocks what-if`: the hit rates of other pool sizes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvproxy.commands.formatting import Formatted, percent
from kvproxy.commands.options import ProxyOptions
from kvproxy.commands.output import Output, print_note, print_text
from kvproxy.commands.tables import Column, Row, number_column, print_table
from kvproxy.operations.blocks_parameters import ForecastQuery
from kvproxy.units import format_bytes, plural

if TYPE_CHECKING:
    from kvproxy.blocks.pool_forecast import PoolForecast

_NAMES = {"half": "half the pool", "double": "twice the pool", "quadruple": "four times the pool"}


def what_if(query: ForecastQuery, proxy: ProxyOptions) -> Output:
    """Forecast the hit rates of other pool sizes.

    The proxy computes them for each engine, from the prompts since its start. It estimates changes of the mean time to the
    first token from the measured prefill time.

    Example: kvproxy blocks what-if --tier 128GiB
    """
    from kvproxy.operations.blocks import forecast_pools

    forecasts = proxy.client().perform(forecast_pools, query)
    return Output(forecasts, lambda: _print_forecasts(forecasts, query.tier))


_NOTED_ERROR = 0.01


def _print_forecasts(forecasts: "Sequence[PoolForecast]", tier: int) -> None:
    names = _NAMES | {"tier": f"host tier of {format_bytes(tier)}", "without_tiers": "current pool without tiers"}
    if not forecasts:
        print_text("no prompt has reached an engine since the start")
    for forecast in forecasts:
        current = next((point.hit_rate for point in forecast.points if point.name == "current"), None)
        measured = forecast.measured_hit_rate
        reported, every = forecast.reported_tokens, forecast.prompt_tokens
        whose = "them" if reported == every else f"{reported:,} with reported reuse"
        reused = "" if measured is None else f", {percent(measured)} of {whose} reused"
        print_text(
            f"{forecast.engine or 'embedded engine'}: {plural(forecast.requests, 'request')} whose response began,"
            f" {forecast.prompt_tokens:,} prompt tokens{reused}"
        )
        rows: list[Row] = []
        for point in forecast.points:
            gain = None if current is None else point.hit_rate - current
            change = point.ttft_ms
            row: dict[Column | str, object] = {"Pool": names.get(point.name, f"{point.name} pool")}
            row |= {
                number_column("Tokens", "pool_tokens", optional=True): point.pool_tokens,
                "Hit rate#": percent(point.hit_rate),
            }
            rows.append(
                row
                | {
                    "Points#?": None if gain is None else Formatted(f"{100 * gain:+.1f}", 100 * gain),
                    number_column("TTFT", "ttft_ms"): None
                    if change is None
                    else Formatted(f"{change:+,.0f} ms", change),
                }
            )
        print_table(rows)
        if forecast.tier_tokens is not None:
            print_note("all rows include the configured tiers, except the row without tiers")
        if measured is not None and current is not None and measured - current >= _NOTED_ERROR:
            print_note(
                f"the engine reuses {100 * (measured - current):.1f} points more than the forecast of its current pool: the hit"
                " rates are lower bounds, so compare pools by their points"
            )
        if forecast.pool_tokens is None:
            print_note("the size of its pool is unknown: the upstream does not report it")
    if any(point.name == "tier" for forecast in forecasts for point in forecast.points):
        print_note("--tier sets the size of the host tier")
    if forecasts:
        print_note("forecasts compare whole messages: equal beginnings of different messages count as new")
        print_note("requests that ended before a response began count in kvproxy blocks stats, but not here")
