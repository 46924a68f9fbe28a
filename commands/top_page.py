"""The page of `kvproxy top`, drawn with rich: requests per layer, both caches, upstreams, and the last requests."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvproxy.commands.blocks_tiers import tier_line
from kvproxy.commands.engines import engine_line
from kvproxy.commands.learned import answered
from kvproxy.commands.output import percent
from kvproxy.commands.safe import shown
from kvproxy.commands.tables import drawn, one_line, text
from kvproxy.proxy_client.snapshot import LAYERS
from kvproxy.commands.formatting import moment

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

_BAR = 40


def figures_page(figures: Mapping[str, Any]) -> "Group":
    """Requests per layer and the state of both caches.

    Args:
        figures: the result of `top_figures.rates`.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2))
    facts.add_column(width=14)
    facts.add_column(overflow="fold")
    for name, value in _facts(figures):
        facts.add_row(Text(name), Text(shown(value)))
    return Group(_layers(figures), facts)


def live_page(
    figures: Mapping[str, Any],
    upstreams: Sequence[Mapping[str, Any]],
    requests: Sequence[Mapping[str, Any]],
    width: int,
) -> "Group":
    """The live page: the figures, then upstreams, then the last requests.

    Args:
        figures: the result of `top_figures.rates`.
        upstreams: rows of `/admin/upstreams`.
        requests: rows of `/admin/log`, the newest first.
        width: columns of the terminal.
    """
    from rich.console import Group

    parts: list[RenderableType] = [figures_page(figures)]
    if upstreams:
        rows = ((each["url"], each["state"], each["requests"], each["sent"]) for each in upstreams)
        parts += ["", drawn((text("upstream"), "state", "running#", "sent#"), rows, width)]
    if requests:
        parts += ["", drawn(("time", "layer", "reason", "ms#", text("question")), map(_request, requests), width)]
    return Group(*parts)


def _layers(figures: Mapping[str, Any]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("requests", "a second", "first byte, ms", "in all"):
        table.add_column(column, justify="left" if column == "requests" else "right")
    for layer in LAYERS:
        first = figures["first_byte_ms"][layer]
        rate, total = figures["per_second"][layer], figures["requests"][layer]
        table.add_row(layer, f"{rate:,.1f}", "-" if first is None else f"{first:,.1f}", f"{total:,}")
    share = figures["from_cache"]
    table.add_row("from the cache", "-" if share is None else percent(share), "", f"{figures['entries']:,} stored")
    return table


def _facts(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    learned = answered(figures["learned"]) if figures["learned"] else []
    return [
        *_counts("lookups", figures["lookups"]),
        *_counts("compared", figures["compared"]),
        *_counts("limited", figures["limited"]),
        *(("" if place else "learned", line) for place, line in enumerate(learned)),
        *_pool(figures["blocks"]),
        *(("tier", tier_line(tier)) for tier in figures["tiers"]),
    ]


def _counts(name: str, counts: Mapping[str, int]) -> list[tuple[str, str]]:
    line = ", ".join(f"{count:,} {each}" for each, count in counts.items() if count)
    return [(name, line)] if line else []


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
    engines = [("engine", engine_line(engine)) for engine in blocks["told"]]
    if blocks["cached"] is None:
        return engines
    # Without a mirror, the figures count the prefixes of llama.cpp.
    unit = "prefixes in slots and files" if blocks["slots"] and blocks["complete"] is None else "blocks mirrored"
    return [
        ("prefix cache", f"{blocks['cached']:,} {unit}"),
        ("evictions", f"{blocks['evictions']:,}"),
        *engines,
    ]


def _request(row: Mapping[str, Any]) -> tuple[object, ...]:
    milliseconds = row["total_ms"]
    return (
        moment(row["time"]).rpartition(" ")[2],
        row["layer"],
        row["reason"],
        "-" if milliseconds is None else f"{milliseconds:,.1f}",
        one_line(row["question"] or "-"),
    )
