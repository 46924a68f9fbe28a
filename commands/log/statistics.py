"""kvproxy log top, hist"""

import math
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from kvproxy.commands.command import command
from kvproxy.commands.formatting import percent
from kvproxy.commands.log.requests import EMPTY, QueryOptions
from kvproxy.commands.options import JournalOptions, Limit
from kvproxy.commands.output import Output, print_note
from kvproxy.commands.tables import table, text

_WIDTH = 50
_BARS_PER_DECADE = 4


class TopGroup(StrEnum):
    """Fields by which requests are grouped."""

    prompt = "prompt"
    tenant = "tenant"
    model = "model"
    tag = "tag"
    reason = "reason"
    layer = "layer"
    upstream = "upstream"


@command
def top(
    *,
    by: Annotated[TopGroup, typer.Option(help="Group requests by this field.")] = TopGroup.prompt,
    backend: Annotated[bool, typer.Option("--backend", help="Sort by backend time instead of requests.")] = False,
    limit: Limit = 10,
    selection: QueryOptions,
    source: JournalOptions,
) -> Output:
    """List the most frequent or most expensive requests.

    Example: kvproxy log top --since 1h

    Example: kvproxy log top --backend --by tenant
    """
    query = selection.query()
    found = source.open().groups(query, by.value, order="backend" if backend else "requests", limit=limit)
    columns = ("Requests#", "Cached#", "Computed tokens#", "Backend seconds#", text(by.value.capitalize()))
    rows = (
        (row.requests, percent(row.cached / max(1, row.requests)), row.computed, f"{row.seconds:,.2f}", row.name)
        for row in found
    )
    return table([asdict(row) for row in found], columns, rows, empty=EMPTY)


@command
def hist(selection: QueryOptions, source: JournalOptions) -> Output:
    """Draw histograms of the time to first byte by layer.

    Example: kvproxy log hist --since 1h
    """
    query = selection.query()
    found = source.open().first_byte_ms(query)
    return Output({name: _quantiles(values) for name, values in found.items()}, lambda: _draw(found))


def _draw(found: dict[str, list[float]]) -> None:
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
