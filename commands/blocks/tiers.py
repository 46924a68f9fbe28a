"""`kvproxy blocks tiers`, `clear-tier`, and `reset`."""

from typing import Annotated, Any

import typer
from typer import Argument

from kvproxy.commands.formatting import Formatted, format_size
from kvproxy.commands.options import ProxyOptions
from kvproxy.commands.output import Output, print_note, text_output
from kvproxy.commands.tables import Row, table_output
from kvproxy.operations.client import quote_path_segment
from kvproxy.units import plural

_COUNTS = ("hits", "misses", "damaged", "errors", "dropped", "evictions")
_ROWS = ("Chunks", "Size", "Limit", *(name.capitalize() for name in _COUNTS), "State")


def tiers(proxy: ProxyOptions) -> Output:
    """List tiers: host memory, disk and Redis.

    A dropped chunk was not written because the write queue was full. An evicted chunk was replaced by another chunk. A tier
    pauses after a failure.

    Example: kvproxy blocks tiers
    """
    found = proxy.client().get("/admin/blocks/tiers")
    # One column per tier: there are at most three, and ten figures in a row would not fit a terminal.
    figures = {f"{tier['name']}#": _tier_figures(tier) for tier in found}
    rows: list[Row] = [{"Tier": name, **{tier: own[name] for tier, own in figures.items()}} for name in _ROWS]
    empty = "there is no tier: start the proxy with --tier-host, --tier-disk or --tier-redis"
    return table_output(found, rows if found else (), empty=empty)


def clear_tier(*, name: Annotated[str, Argument(help="The tier: host, disk or redis.")], proxy: ProxyOptions) -> Output:
    """Delete all chunks of a tier, of other models too.

    The pool keeps its blocks; blocks reset empties the pool.

    Example: kvproxy blocks clear-tier disk
    """
    done = proxy.client().delete(f"/admin/blocks/tiers/{quote_path_segment(name)}")
    return text_output(done, f"deleted {done['cleared']:,} chunks from {name}")


def reset(proxy: ProxyOptions) -> Output:
    """Empty the prefix cache of all engines.

    An engine refuses while a request or a pin uses blocks. The exit code is 1 if an engine refuses.

    Example: kvproxy blocks reset
    """
    done = proxy.client().post("/admin/blocks/reset")
    lines = [(engine["reset"], _engine_reset_line(engine)) for engine in done.get("engines") or ()]

    def show() -> None:
        for is_reset, line in lines or [(done["reset"], _pool_reset_line(done))]:
            typer.echo(line) if is_reset else print_note(f"kvproxy: {line}")

    return Output(done, show, exit_code=0 if done["reset"] else 1)


def _tier_figures(tier: dict[str, Any]) -> dict[str, object]:
    limit = Formatted("none", None) if tier["limit"] is None else format_size(tier["limit"])
    state = "in use" if tier["available"] else "paused"
    counts = (tier[name] for name in _COUNTS)
    return dict(zip(_ROWS, (tier["chunks"], format_size(tier["bytes"]), limit, *counts, state), strict=True))


def _pool_reset_line(done: dict[str, Any]) -> str:
    if done["reset"]:
        return "the prefix cache is empty"
    if done["pinned"]:
        return f"refused: {plural(done['pinned'], 'pinned block')}; list pins with blocks pins, remove one with blocks unpin"
    return "refused: a request uses blocks; try again when it has finished"


def _engine_reset_line(engine: dict[str, Any]) -> str:
    state = "the prefix cache is empty" if engine["reset"] else "not reset"
    return f"{engine['engine']}: {state}" + (f" ({engine['message']})" if engine["message"] else "")
