"""kvproxy blocks tiers, clear-tier: what is kept beyond the pool."""

from typing import Annotated, Any

import typer

from kvproxy.commands.client import ProxyClient
from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import print_json, print_table

_COUNTS = ("hits", "misses", "damaged", "errors", "dropped", "evictions")
_FIGURES = ("chunks", "MiB", "limit MiB", *_COUNTS, "state")


def tier_line(tier: dict[str, Any]) -> str:
    """What a tier holds, in a few words."""
    line = f"{tier['name']}: {tier['chunks']:,} chunks, {tier['bytes'] / 2**20:,.1f} MiB, {tier['hits']:,} hits"
    return line if tier["available"] else f"{line}, left alone after failures"


def _figures(tier: dict[str, Any]) -> list[object]:
    limit = "none" if tier["limit"] is None else f"{tier['limit'] / 2**20:,.1f}"
    state = "in use" if tier["available"] else "left alone"
    return [tier["chunks"], f"{tier['bytes'] / 2**20:,.1f}", limit, *(tier[name] for name in _COUNTS), state]


def tiers(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """List what is kept beyond the pool: host memory, disk, Redis.

    Dropped chunks were never written, because too many waited. Evictions are chunks dropped for room.

    Example: kvproxy blocks tiers
    """
    found = ProxyClient(url, token).get("/admin/blocks/tiers")
    if as_json:
        print_json(found)
        return
    if not found:
        typer.echo("no tiers: serve with --tier-host, --tier-disk or --tier-redis")
        return
    # A tier a column: at most three, where ten figures a row would not fit a terminal.
    print_table(("tier", *(f"{tier['name']}#" for tier in found)), zip(_FIGURES, *map(_figures, found), strict=True))


def clear_tier(
    name: Annotated[str, typer.Argument(help="host, disk or redis.")],
    models: Annotated[str, typer.Option(help="Whose chunks: own (the running model), others or all.")] = "own",
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Drop the chunks that a tier keeps. The pool keeps its blocks; blocks reset empties that.

    Example: kvproxy blocks clear-tier disk --models others
    """
    from urllib.parse import quote

    done = ProxyClient(url, token).delete(f"/admin/blocks/tiers/{quote(name, safe='')}", models=models)
    if as_json:
        print_json(done)
    else:
        typer.echo(f"{done['cleared']:,} chunks dropped from {name}")
