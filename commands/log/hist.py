"""kvproxy log hist"""

import math

import typer

from kvproxy.commands.log.options import EMPTY, Layer, Model, Reason, Since, Tenant, Where
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Token, Url
from kvproxy.commands.output import print_json, print_note

_WIDTH = 50
_BARS_PER_DECADE = 4


def hist(
    since: Since = None,
    layer: Layer = None,
    reason: Reason = None,
    tenant: Tenant = None,
    model: Model = None,
    where: Where = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Draw histograms of the time to first byte by layer.

    Example: kvproxy log hist --since 1h
    """
    from kvproxy.proxy_client.journal import journal_query, open_journal

    query = journal_query(since, layer, reason, tenant, model, where)
    found = open_journal(url, token, data).first_byte_ms(query)
    if as_json:
        print_json({name: _quantiles(values) for name, values in found.items()})
        return
    if not found:
        print_note(EMPTY)
    for name, values in sorted(found.items(), key=lambda item: -len(item[1])):
        quantiles = _quantiles(values)
        p50, p90, p99 = (_time(quantiles[each]) for each in ("p50", "p90", "p99"))
        typer.echo(f"{name}  {len(values):,} requests, p50 {p50}, p90 {p90}, p99 {p99}")
        typer.echo("\n".join(_bars(values)) + "\n")


def _quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    places = {name: max(0, math.ceil(share * len(ordered)) - 1) for name, share in shares.items()}
    return {"requests": len(ordered)} | {name: round(ordered[place], 3) for name, place in places.items()}


def _bars(values: list[float]) -> list[str]:
    """Return the bars of a logarithmic scale, from the smallest to the largest value."""
    steps = [math.floor(math.log10(max(value, 1e-3)) * _BARS_PER_DECADE) for value in values]
    counts = {step: steps.count(step) for step in set(steps)}
    most = max(counts.values())
    lines = []
    for step in range(min(counts), max(counts) + 1):
        count = counts.get(step, 0)
        bar = "█" * round(_WIDTH * count / most) or ("▏" if count else "")
        lines.append(f"  {_time(10 ** (step / _BARS_PER_DECADE)):>8}  {bar} {count or ''}".rstrip())
    return lines


def _time(milliseconds: float) -> str:
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:,.1f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"
