"""kvproxy log top and log hist: what requests have in common, and how long they took."""

import math
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from kvproxy.proxy_client.journal import Layer, Model, Reason, Since, Tenant, Where, open_journal, query, questions
from kvproxy.commands.options import DEFAULT_URL, Data, Json, Token, Url
from kvproxy.commands.output import print_json, print_table
from kvproxy.commands.tables import text
from kvproxy.commands.formatting import percent

_WIDTH = 50
_STEPS = 4
"""Bars for each power of ten."""


class By(StrEnum):
    """What requests may have in common."""

    prompt = "prompt"
    tenant = "tenant"
    model = "model"
    tag = "tag"
    reason = "reason"
    layer = "layer"
    upstream = "upstream"


def top(
    by: Annotated[By, typer.Option(help="What they have in common.")] = By.prompt,
    backend: Annotated[
        bool, typer.Option("--backend", help="First those that cost the backend most, not those that come most often.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many rows.", min=1)] = 10,
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
    """Tell which requests repeat most; with --backend, which reach the backend most.

    Example: kvproxy log top --since 1h

    Example: kvproxy log top --backend --by tenant
    """
    reader = open_journal(url, token, data)
    asked = query(since, layer, reason, tenant, model, where)
    rows = reader.groups(asked, by.value, order="backend" if backend else "requests", limit=limit)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    names = questions(reader.path.parent, [row.entry for row in rows]) if by is By.prompt else {}
    print_table(
        ("requests#", "cached#", "computed tokens#", "backend s#", text(by.value)),
        (
            (
                row.requests,
                percent(row.cached / max(1, row.requests)),
                row.computed,
                f"{row.seconds:,.2f}",
                names.get(row.entry or "", row.name),
            )
            for row in rows
        ),
        empty="no requests: none came, or none fits",
    )


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
    """Draw how long requests waited for the first byte of their answer, for each layer.

    Example: kvproxy log hist --since 1h
    """
    found = open_journal(url, token, data).milliseconds(query(since, layer, reason, tenant, model, where))
    if as_json:
        print_json({name: _figures(values) for name, values in found.items()})
        return
    if not found:
        typer.echo("no requests: none came, or none fits", err=True)
    for name, values in sorted(found.items(), key=lambda item: -len(item[1])):
        figures = _figures(values)
        typer.echo(
            f"{name}  {len(values):,} requests, median {_time(figures['p50'])}, 90% within {_time(figures['p90'])},"
            f" 99% within {_time(figures['p99'])}"
        )
        typer.echo("\n".join(_bars(values)) + "\n")


def _figures(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    places = {name: max(0, math.ceil(share * len(ordered)) - 1) for name, share in shares.items()}
    return {"requests": len(ordered)} | {name: round(ordered[place], 3) for name, place in places.items()}


def _bars(values: list[float]) -> list[str]:
    """A line for each step of a logarithmic scale, from the least value to the greatest."""
    steps = [math.floor(math.log10(max(value, 1e-3)) * _STEPS) for value in values]
    counts = {step: steps.count(step) for step in set(steps)}
    most = max(counts.values())
    lines = []
    for step in range(min(counts), max(counts) + 1):
        count = counts.get(step, 0)
        bar = "█" * round(_WIDTH * count / most) or ("▏" if count else "")
        lines.append(f"  {_time(10 ** (step / _STEPS)):>8}  {bar} {count or ''}".rstrip())
    return lines


def _time(milliseconds: float) -> str:
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:,.1f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"
