"""kvproxy top: both caches while they work."""

import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvproxy.commands.blocks_tiers import tier_line
from kvproxy.commands.client import ProxyClient
from kvproxy.commands.engines import engine_line
from kvproxy.commands.learned import answered
from kvproxy.commands.options import DEFAULT_URL, Json, Token, Url
from kvproxy.commands.output import percent
from kvproxy.errors import NoPrefixCache

if TYPE_CHECKING:
    from rich.console import Group

LAYERS = ("exact", "semantic", "forward", "bypass", "gone", "error")
"""What becomes of requests, as `flow.outcome.Layer`: answered by a cache or by the engine, passed on unread, left by their
client, or refused."""
_BAR = 40


@dataclass(frozen=True, slots=True)
class Sample:
    """What a proxy says at one moment.

    Attributes:
        at: when, in seconds of a clock that only rises.
        requests: answered so far, by layer.
        seconds: to the first byte in all, by layer.
        entries: stored responses.
        blocks: figures of the prefix cache; None where an upstream keeps its own.
        tiers: what is kept outside the pool.
        learned: what the policy learned knows, by name; empty under another policy.
    """

    at: float
    requests: Counter[str]
    seconds: Counter[str]
    entries: int
    blocks: dict[str, Any] | None
    tiers: list[dict[str, Any]]
    learned: dict[str, float] = field(default_factory=dict)


def top(
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    count: Annotated[int | None, typer.Option(help="How many looks.", show_default="until Ctrl-C; 1 in a pipe")] = None,
    url: Url = DEFAULT_URL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Watch a proxy: which layer answers how many requests a second, and how full the pool is.

    With --json each look is one line.

    Example: kvproxy top
    """
    client = ProxyClient(url, token)
    watched = sys.stdout.isatty() and not as_json
    looks = count if count is not None else (None if watched else 1)
    try:
        if watched:
            _watch(client, interval, looks)
        else:
            _print(client, interval, looks, as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _watch(client: ProxyClient, interval: float, looks: int | None) -> None:
    from rich.live import Live

    before = take(client)
    with Live(screen=False, auto_refresh=False) as live:
        while looks is None or looks > 0:
            time.sleep(interval)
            now = take(client)
            live.update(_page(between(before, now)), refresh=True)
            before, looks = now, None if looks is None else looks - 1


def _print(client: ProxyClient, interval: float, looks: int | None, *, as_json: bool) -> None:
    from rich.console import Console

    before = take(client)
    while looks is None or looks > 0:
        time.sleep(interval)
        now = take(client)
        if as_json:
            typer.echo(json.dumps(between(before, now)))
        else:
            Console().print(_page(between(before, now)))
        before, looks = now, None if looks is None else looks - 1


def take(client: ProxyClient) -> Sample:
    """A look at `/metrics` and at the figures of the prefix cache, where there is one."""
    from prometheus_client.parser import text_string_to_metric_families

    requests: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    entries, learned = 0, dict[str, float]()
    for family in text_string_to_metric_families(client.text("/metrics")):
        for sample in family.samples:
            if sample.name == "kvproxy_requests_total":
                requests[sample.labels["layer"]] += int(sample.value)
            elif sample.name == "kvproxy_first_byte_seconds_sum":
                seconds[sample.labels["layer"]] += sample.value  # type: ignore[assignment]
            elif sample.name == "kvproxy_cache_entries":
                entries = int(sample.value)
            elif sample.name == "kvproxy_learned":
                learned[sample.labels["of"]] = sample.value
    blocks, tiers = _ask(client, "/admin/blocks/stats"), _ask(client, "/admin/blocks/tiers")
    return Sample(time.monotonic(), requests, seconds, entries, blocks, tiers or [], learned)


def _ask(client: ProxyClient, path: str) -> Any:
    """What a route says of the prefix cache; None where an upstream keeps its own."""
    try:
        return client.get(path)
    except NoPrefixCache:
        return None


def between(before: Sample, now: Sample) -> dict[str, Any]:
    """Rates and mean times of what happened between two looks, totals, and the prefix cache as it is.

    `first_byte_ms` is None for a layer that answered nothing meanwhile.
    """
    elapsed = now.at - before.at
    new = {layer: now.requests[layer] - before.requests[layer] for layer in LAYERS}
    taken = {layer: now.seconds[layer] - before.seconds[layer] for layer in LAYERS}
    answered = sum(new.values()) - new["gone"]
    return {
        "per_second": {layer: round(new[layer] / elapsed, 2) for layer in LAYERS},
        "first_byte_ms": {
            layer: round(1000 * taken[layer] / new[layer], 2) if new[layer] else None for layer in LAYERS
        },
        "from_cache": round((new["exact"] + new["semantic"]) / answered, 4) if answered else None,
        "requests": {layer: now.requests[layer] for layer in LAYERS},
        "entries": now.entries,
        "blocks": now.blocks,
        "tiers": now.tiers,
        "learned": now.learned,
    }


def _page(figures: dict[str, Any]) -> "Group":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("requests", "a second", "first byte, ms", "in all"):
        table.add_column(column, justify="left" if column == "requests" else "right")
    for layer in LAYERS:
        first = figures["first_byte_ms"][layer]
        rate, total = figures["per_second"][layer], figures["requests"][layer]
        table.add_row(layer, f"{rate:,.1f}", "-" if first is None else f"{first:,.1f}", f"{total:,}")
    share = figures["from_cache"]
    table.add_row("from the cache", "-" if share is None else percent(share), "", f"{figures['entries']:,} stored")
    lines = [
        *_learned(figures["learned"]),
        *_pool(figures["blocks"]),
        *(("tier", tier_line(tier)) for tier in figures["tiers"]),
    ]
    return Group(table, *(Text(f"{name:<14}  {value}") for name, value in lines))


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
        ("prefix hits", percent(blocks["hit_rate"])),
        ("used, cached", f"{blocks['used']:,}, {blocks['cached']:,} of {total:,}"),
        ("evictions", f"{blocks['evictions']:,}"),
    ]


def _upstream_pools(blocks: dict[str, Any]) -> list[tuple[str, str]]:
    told = [("engine", engine_line(engine)) for engine in blocks["told"]]
    if blocks["cached"] is None:
        return told
    return [
        ("prefix cache", f"{blocks['cached']:,} blocks mirrored"),
        ("evictions", f"{blocks['evictions']:,}"),
        *told,
    ]
