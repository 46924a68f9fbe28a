"""The figures of one look, drawn."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvproxy.commands.blocks_tiers import tier_line
from kvproxy.commands.engines import engine_line
from kvproxy.commands.learned import answered
from kvproxy.commands.output import percent
from kvproxy.commands.safe import shown
from kvproxy.commands.watch.sample import LAYERS

if TYPE_CHECKING:
    from rich.console import Group

_BAR = 40
_STEPS = "▁▂▃▄▅▆▇█"


def page(figures: Mapping[str, Any], history: Mapping[str, Sequence[float]] | None = None) -> "Group":
    """What was answered, by layer, and both caches.

    Args:
        figures: of `sample.between`.
        history: requests a second over time, by layer; shown beside each, where it is given.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("requests", "a second", "first byte, ms", "in all"):
        table.add_column(column, justify="left" if column == "requests" else "right")
    if history is not None:
        table.add_column("since the start")
    for layer in LAYERS:
        first = figures["first_byte_ms"][layer]
        rate, total = figures["per_second"][layer], figures["requests"][layer]
        drawn = [] if history is None else [sparkline(history.get(layer, ()))]
        table.add_row(layer, f"{rate:,.1f}", "-" if first is None else f"{first:,.1f}", f"{total:,}", *drawn)
    share = figures["from_cache"]
    table.add_row("from the cache", "-" if share is None else percent(share), "", f"{figures['entries']:,} stored")
    lines = [
        *_counts("lookups", figures["lookups"]),
        *_counts("compared", figures["compared"]),
        *_counts("limited", figures["limited"]),
        *_learned(figures["learned"]),
        *_pool(figures["blocks"]),
        *(("tier", tier_line(tier)) for tier in figures["tiers"]),
    ]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(width=14)
    facts.add_column(overflow="fold")
    for name, value in lines:
        facts.add_row(Text(name), Text(shown(value)))
    return Group(table, facts)


def sparkline(values: Sequence[float]) -> str:
    """Values as bars, the largest as high as a line is; nothing at all is a blank."""
    most = max(values, default=0.0)
    if most <= 0:
        return " " * len(values)
    return "".join(" " if value <= 0 else _STEPS[min(7, int(8 * value / most))] for value in values)


def _counts(name: str, counts: Mapping[str, int]) -> list[tuple[str, str]]:
    told = ", ".join(f"{count:,} {each}" for each, count in counts.items() if count)
    return [(name, told)] if told else []


def _learned(learned: dict[str, float]) -> list[tuple[str, str]]:
    if not learned:
        return []
    return [("" if place else "learned", line) for place, line in enumerate(answered(learned))]


def _pool(blocks: dict[str, Any] | None) -> list[tuple[str, str]]:
    if blocks is None:
        return [("prefix cache", "unknown: the upstream keeps its own")]
    if blocks["engines"]:
        return _upstream_pools(blocks)
    total = blocks["num_blocks"] - 1
    used, cached = round(_BAR * blocks["used"] / total), round(_BAR * blocks["cached"] / total)
    bar = "█" * used + "▒" * cached
    return [
        ("pool", f"{bar:·<{_BAR}}"),
        ("prefix hits", f"{percent(blocks['hit_rate'])} ({blocks['hits']:,} of {blocks['queries']:,} prompt tokens)"),
        ("used, cached", f"{blocks['used']:,}, {blocks['cached']:,} of {total:,}"),
        ("evictions", f"{blocks['evictions']:,}"),
    ]


def _upstream_pools(blocks: dict[str, Any]) -> list[tuple[str, str]]:
    told = [("engine", engine_line(engine)) for engine in blocks["told"]]
    if blocks["cached"] is None:
        return told
    # Without a mirror they are what llama.cpp holds.
    what = "prefixes in slots and files" if blocks["slots"] and blocks["complete"] is None else "blocks mirrored"
    return [
        ("prefix cache", f"{blocks['cached']:,} {what}"),
        ("evictions", f"{blocks['evictions']:,}"),
        *told,
    ]
