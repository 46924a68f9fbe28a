"""kvproxy blocks tiers, clear-tier: the chunks of the prefix cache that are kept outside the pool."""

from typing import Annotated, Any, Literal

import typer

from kvproxy.proxy_client.client import ProxyClient, part
from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import print_json
from kvproxy.commands.tables import print_table
from kvproxy.commands.formatting import size

_COUNTS = ("hits", "misses", "damaged", "errors", "dropped", "evictions")
_FIGURES = ("chunks", "size", "limit", *_COUNTS, "state")


def tier_line(tier: dict[str, Any]) -> str:
    """What a tier holds, in a few words."""
    line = f"{tier['name']}: {tier['chunks']:,} chunks, {size(tier['bytes'])}, {tier['hits']:,} hits"
    return line if tier["available"] else f"{line}, not used for now because it failed"


def _figures(tier: dict[str, Any]) -> list[object]:
    limit = "none" if tier["limit"] is None else size(tier["limit"])
    state = "in use" if tier["available"] else "failed"
    return [tier["chunks"], size(tier["bytes"]), limit, *(tier[name] for name in _COUNTS), state]


def tiers(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """List the tiers that keep chunks outside the pool: host memory, disk, Redis.

    A dropped chunk was never written, because too many chunks waited. An evicted chunk made room for another one. A tier
    that failed is not used for a while, and then tried again.

    Example: kvproxy blocks tiers
    """
    found = ProxyClient(url, token).get("/admin/blocks/tiers")
    if as_json:
        print_json(found)
        return
    if not found:
        typer.echo("there is no tier: serve with --tier-host, --tier-disk or --tier-redis", err=True)
        return
    # Each tier is a column: there are at most three, and ten figures in a row would not fit a terminal.
    print_table(("tier", *(f"{tier['name']}#" for tier in found)), zip(_FIGURES, *map(_figures, found), strict=True))


def clear_tier(
    name: Annotated[str, typer.Argument(help="The tier: host, disk or redis.")],
    models: Annotated[
        Literal["own", "others", "all"], typer.Option(help="Whose chunks; own are those of the running model.")
    ] = "own",
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Drop the chunks that a tier keeps. The pool keeps its blocks; blocks reset empties the pool.

    Example: kvproxy blocks clear-tier disk --models others
    """
    done = ProxyClient(url, token).delete(f"/admin/blocks/tiers/{part(name)}", models=models)
    if as_json:
        print_json(done)
    else:
        typer.echo(f"{done['cleared']:,} chunks dropped from {name}")
