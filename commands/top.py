"""`kvproxy top`: watches a proxy."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from typer import Option

from kvproxy.commands.blocks.engine_lines import engine_line, tier_line
from kvproxy.commands.formatting import decimal, local_time, milliseconds, money, percent
from kvproxy.commands.options import Json, ProxyOptions, duration_option
from kvproxy.commands.output import print_facts
from kvproxy.commands.statistics_text import policy_sentences
from kvproxy.commands.tables import Column, Row, build_table, number_column, print_table, text_column
from kvproxy.errors import ProxyUnreachable
from kvproxy.operations.client import ProxyClient
from kvproxy.operations.proxy_statistics import LAYERS, get_optional, rates_between, take_snapshot
from kvproxy.telemetry.printable_text import escape_controls

_REQUESTS = 10
_TIMEOUT = 5.0
_BAR_WIDTH = 40


def top(
    *,
    interval: Annotated[float, duration_option(help="Time between updates.", show_default="1s")] = 1.0,
    once: Annotated[bool, Option("--once", help="Print one update, then exit.")] = False,
    proxy: ProxyOptions,
    as_json: Json = False,
) -> None:
    """Watch requests, hit rates, the block pool and upstreams.

    At a terminal the page is live; Ctrl-C ends it. In a pipe, or with --once or --json, it prints one update. The dashboard at
    /ui has more views.

    Example: kvproxy top --once
    """
    try:
        if sys.stdout.isatty() and not once and not as_json:
            _show_live(ProxyClient(proxy.url, proxy.token, timeout=_TIMEOUT), interval)
        else:
            _print_update(proxy.client(), interval, as_json)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _print_update(client: ProxyClient, interval: float, as_json: bool) -> None:
    before = take_snapshot(client)
    time.sleep(interval)
    figures = rates_between(before, take_snapshot(client))
    if as_json:
        typer.echo(json.dumps(figures))
    elif (console := Console(file=sys.stdout)).is_terminal:
        console.print(summary_page(figures))
    else:
        print_table(_layer_rows(figures))
        print_facts([("from_cache", figures["from_cache"]), ("entries", figures["entries"]), *_summary_facts(figures)])


def _layer_rows(figures: Mapping[str, Any]) -> Iterator[Row]:
    for layer in LAYERS:
        yield {
            "Layer": layer,
            number_column("Requests/s", "per_second"): decimal(figures["per_second"][layer], 1),
            number_column("First byte, ms", "first_byte_ms"): milliseconds(figures["first_byte_ms"][layer]),
            number_column("Total", "requests"): figures["requests"][layer],
        }


def _show_live(client: ProxyClient, interval: float) -> None:
    from rich.live import Live

    console = Console()
    before = take_snapshot(client)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            page: RenderableType
            try:
                now = take_snapshot(client)
                upstreams = get_optional(client, "/admin/upstreams") or []
                requests = get_optional(client, "/admin/log", limit=_REQUESTS) or []
                page = live_page(rates_between(before, now), upstreams, requests, console.width)
                before = now
            except ProxyUnreachable as error:
                page = error.message
            live.update(page, refresh=True)


def summary_page(figures: Mapping[str, Any]) -> Group:
    """Return a page on the requests by layer, and on both caches. `figures` is a result of `proxy_statistics.rates_between`."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(width=14)
    facts.add_column(overflow="fold")
    for name, value in _summary_facts(figures):
        facts.add_row(Text(name), Text(escape_controls(value)))
    return Group(_layer_table(figures), facts)


def live_page(
    figures: Mapping[str, Any],
    upstreams: Sequence[Mapping[str, Any]],
    requests: Sequence[Mapping[str, Any]],
    width: int,
) -> Group:
    """Return `summary_page` with tables of the rows of `/admin/upstreams` and `/admin/log`. `width` is in characters."""
    parts: list[RenderableType] = [summary_page(figures)]
    if upstreams:
        columns: dict[Column | str, str] = {
            text_column("Upstream"): "url",
            "State": "state",
            "Running#": "requests",
            "Sent#": "sent",
        }
        rows = [{column: each[name] for column, name in columns.items()} for each in upstreams]
        if any(each.get("models") for each in upstreams):
            for row, each in zip(rows, upstreams, strict=True):
                row["Models"] = ", ".join(each["models"]) or "all others"
        parts += ["", build_table(rows, width)]
    if requests:
        parts += ["", build_table(map(_request_row, requests), width)]
    return Group(*parts)


def _layer_table(figures: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("Layer", "Requests/s", "First byte, ms", "Total"):
        table.add_column(column, justify="left" if column == "Layer" else "right")
    for layer in LAYERS:
        rate, total = figures["per_second"][layer], figures["requests"][layer]
        table.add_row(layer, f"{rate:,.1f}", milliseconds(figures["first_byte_ms"][layer]), f"{total:,}")
    share = figures["from_cache"]
    table.add_row("from cache", "-" if share is None else percent(share), "", f"{figures['entries']:,} stored")
    return table


def _summary_facts(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    learned = policy_sentences(figures["learned"]) if figures["learned"] else []
    return [
        ("Forward", "includes reused prefixes, shared responses, and clients that left during a response"),
        *_format_counts("Lookups", figures["lookups"]),
        *_format_counts("Not served", figures["compared"], " (stored responses compared with fresh ones)"),
        *_format_counts("Limited", figures["limited"]),
        *(("" if index else "Learned", sentence) for index, sentence in enumerate(learned)),
        *_pool_facts(figures["blocks"]),
        *(("Tier", tier_line(tier)) for tier in figures["tiers"]),
    ]


def _format_counts(name: str, counts: Mapping[str, int], note: str = "") -> list[tuple[str, str]]:
    line = ", ".join(f"{count:,} {each}" for each, count in counts.items() if count)
    return [(name, line + note)] if line else []


def _pool_facts(blocks: dict[str, Any] | None) -> list[tuple[str, str]]:
    if blocks is None:
        return [("Prefix cache", "unknown: the upstream manages it")]
    if blocks["engines"]:
        return _upstream_facts(blocks)
    total = blocks["num_blocks"] - 1
    used, cached = round(_BAR_WIDTH * blocks["used"] / total), round(_BAR_WIDTH * blocks["cached"] / total)
    bar = "█" * used + "▒" * cached
    return [
        ("Pool", f"{bar:·<{_BAR_WIDTH}}"),
        ("Prefix hits", f"{percent(blocks['hit_rate'])} ({blocks['hits']:,} of {blocks['queries']:,} prompt tokens)"),
        ("Blocks", f"{blocks['used']:,} used and {blocks['cached']:,} cached, of {total:,}"),
        ("Evictions", f"{blocks['evictions']:,} blocks"),
    ]


def _upstream_facts(blocks: dict[str, Any]) -> list[tuple[str, str]]:
    engines = [("Engine", engine_line(engine)) for engine in blocks["reported"]]
    if blocks["cached"] is None:
        return engines
    # Without a mirror, the statistics count the prefixes of llama.cpp.
    unit = "prefixes in slots and files" if blocks["slots"] and blocks["complete"] is None else "blocks mirrored"
    offloaded = ", ".join(f"{count:,} {medium}" for medium, count in blocks.get("offloaded", {}).items() if count)
    return [
        ("Prefix cache", f"{blocks['cached']:,} {unit}"),
        *([("Offloaded", f"{offloaded} blocks")] if offloaded else []),
        ("Evictions", f"{blocks['evictions']:,}"),
        *engines,
    ]


def _request_row(row: Mapping[str, Any]) -> Row:
    return {
        "Time": local_time(row["time"]).rpartition(" ")[2],
        "Layer": row["layer"],
        "Reason": row["reason"],
        "Cost#": money(row.get("cost")),
        "ms#": milliseconds(row["total_ms"]),
        "Model?": row["model"] or None,
        text_column("Question"): row["question"] or None,
    }
