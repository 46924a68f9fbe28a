"""`kvproxy blocks tiers`, `clear-tier`, and `reset`."""

from typing import TYPE_CHECKING

import typer

from kvproxy.commands.formatting import Formatted, format_size
from kvproxy.commands.options import ProxyOptions
from kvproxy.commands.output import Output, print_note, text_output
from kvproxy.commands.tables import Row, table_output
from kvproxy.operations.blocks_parameters import TierName
from kvproxy.operations.operation import NoParameters
from kvproxy.units import plural

if TYPE_CHECKING:
    from kvproxy.backends.reports import EngineResetResult, ResetReport
    from kvproxy.tiers.chunk_store import TierStats

_COUNTS = ("hits", "tokens_loaded", "misses", "damaged", "errors", "dropped", "evictions")
_ROWS = ("Chunks", "Size", "Limit", *(name.capitalize().replace("_", " ") for name in _COUNTS), "State")


def tiers(proxy: ProxyOptions) -> Output:
    """List tiers: host memory, disk and Redis.

    A dropped chunk was not written because the write queue was full. An evicted chunk was replaced by another chunk. A tier
    fails until it has written a chunk again.

    Example: kvproxy blocks tiers
    """
    from kvproxy.operations.blocks import list_tiers

    tiers = proxy.client().perform(list_tiers, NoParameters())
    # One column per tier: there are at most three, and ten figures in a row would not fit a terminal.
    figures = {f"{tier.name}#": _tier_figures(tier) for tier in tiers}
    rows: list[Row] = [{"Tier": name, **{tier: own[name] for tier, own in figures.items()}} for name in _ROWS]
    for tier in tiers:
        if tier.failure is not None:
            print_note(f"the tier {tier.name} fails: {tier.failure}")
    empty = "there is no tier: start the proxy with --tier-host, --tier-disk or --tier-redis"
    return table_output(tiers, rows if tiers else (), empty=empty)


def clear_tier(tier: TierName, proxy: ProxyOptions) -> Output:
    """Delete all chunks of a tier, of other models too.

    The pool keeps its blocks; blocks reset empties the pool.

    Example: kvproxy blocks clear-tier disk
    """
    from kvproxy.operations import blocks

    cleared = proxy.client().perform(blocks.clear_tier, tier)
    return text_output(cleared, f"deleted {cleared.cleared:,} chunks from {cleared.tier}")


def reset(proxy: ProxyOptions) -> Output:
    """Empty the prefix cache of all engines.

    An engine refuses while a request or a pin uses blocks. The exit code is 1 if an engine refuses.

    Example: kvproxy blocks reset
    """
    from kvproxy.operations.blocks import reset_blocks

    report = proxy.client().perform(reset_blocks, NoParameters())
    lines = [(engine.reset, _engine_reset_line(engine)) for engine in report.engines]

    def show() -> None:
        for is_reset, line in lines or [(report.reset, _pool_reset_line(report))]:
            typer.echo(line) if is_reset else print_note(f"kvproxy: {line}")

    return Output(report, show, exit_code=0 if report.reset else 1)


def _tier_figures(tier: "TierStats") -> dict[str, object]:
    limit = Formatted("none", None) if tier.limit is None else format_size(tier.limit)
    state = "fails" if tier.failure is not None else "in use" if tier.available else "paused"
    counts = (getattr(tier, name) for name in _COUNTS)
    return dict(zip(_ROWS, (tier.chunks, format_size(tier.bytes), limit, *counts, state), strict=True))


def _pool_reset_line(report: "ResetReport") -> str:
    if report.reset:
        return "the prefix cache is empty"
    if report.pinned:
        return f"refused: {plural(report.pinned, 'pinned block')}; list pins with blocks pins, remove one with blocks unpin"
    return "refused: a request uses blocks; try again when it has finished"


def _engine_reset_line(engine: "EngineResetResult") -> str:
    state = "the prefix cache is empty" if engine.reset else "not reset"
    return f"{engine.engine}: {state}" + (f" ({engine.message})" if engine.message else "")
