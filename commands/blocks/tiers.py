"""kvproxy blocks tiers, clear-tier"""

from typing import Annotated, Any, Literal

import typer

from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import print_json, print_note, print_result
from kvproxy.commands.tables import print_table
from kvproxy.proxy_client.client import ProxyClient, path_segment
from kvproxy.units import format_bytes

_COUNTS = ("hits", "misses", "damaged", "errors", "dropped", "evictions")
_ROWS = ("Chunks", "Size", "Limit", *(name.capitalize() for name in _COUNTS), "State")


def tiers(url: Url = DEFAULT_URL, token: Token = None, as_json: Json = False) -> None:
    """List tiers: host memory, disk and Redis.

    A dropped chunk was not written because the write queue was full. An evicted chunk was replaced by another chunk. A tier
    pauses after a failure.

    Example: kvproxy blocks tiers
    """
    found = ProxyClient(url, token).get("/admin/blocks/tiers")
    if as_json:
        print_json(found)
    elif not found:
        print_note("there is no tier: start the proxy with --tier-host, --tier-disk or --tier-redis")
    else:
        # One column per tier: there are at most three, and ten figures in a row would not fit a terminal.
        columns = ("Tier", *(f"{tier['name']}#" for tier in found))
        print_table(columns, zip(_ROWS, *map(_figures, found), strict=True))


def clear_tier(
    name: Annotated[str, typer.Argument(help="The tier: host, disk or redis.")],
    models: Annotated[
        Literal["own", "others", "all"],
        typer.Option(help="Clear chunks of the running model, of other models, or all."),
    ] = "own",
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Delete the chunks of a tier.

    The pool keeps its blocks; blocks reset empties the pool.

    Example: kvproxy blocks clear-tier disk --models others
    """
    done = ProxyClient(url, token).delete(f"/admin/blocks/tiers/{path_segment(name)}", models=models)
    print_result(done, as_json, f"deleted {done['cleared']:,} chunks from {name}")


def _figures(tier: dict[str, Any]) -> list[object]:
    limit = "none" if tier["limit"] is None else format_bytes(tier["limit"])
    state = "in use" if tier["available"] else "paused"
    return [tier["chunks"], format_bytes(tier["bytes"]), limit, *(tier[name] for name in _COUNTS), state]
