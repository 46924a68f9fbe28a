"""`kvproxy top`: watches a proxy."""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.segment import SegmentLines
from rich.table import Table
from rich.text import Text
from typer import Option

from kvproxy.commands.blocks.engine_lines import engine_line, prefix_hits, tier_line
from kvproxy.commands.blocks.picture import SHAPES
from kvproxy.commands.formatting import amount_text, decimal, json_text, local_time, milliseconds, money, percent
from kvproxy.commands.key_presses import key_presses
from kvproxy.commands.options import Json, ProxyOptions, duration_option
from kvproxy.commands.output import print_facts
from kvproxy.commands.statistics_text import policy_sentences
from kvproxy.commands.tables import Column, Row, build_table, number_column, print_table, text_column
from kvproxy.errors import ProxyUnreachable
from kvproxy.operations.client import ProxyClient
from kvproxy.telemetry.printable_text import escape_controls
from kvproxy.units import plural

if TYPE_CHECKING:
    from kvproxy.backends.reports import PrefixCacheStats
    from kvproxy.journal.record import RecordWithQuestions
    from kvproxy.operations.proxy_statistics import Snapshot, Totals, TrafficStatistics
    from kvproxy.upstreams.status import EngineStatus

_REQUESTS = 10
_MODELS = Column("Models", hides_empty=True)
_TIMEOUT = 5.0
_NOT_COUNTED = "without an upstream's statuses below 500: see kvproxy log --reason error-upstream"
_OF_FIRST = "{}; what they learned, and their prefix caches, are those of the first one"
_BAR_WIDTH = 40
_MAIN_LAYERS = ("exact", "semantic", "forward")


def top(
    *,
    interval: Annotated[float, duration_option(help="Time between updates.", show_default="1s")] = 1.0,
    once: Annotated[bool, Option("--once", help="Print one update, then exit.")] = False,
    also: Annotated[
        list[str] | None, Option("--also", metavar="URL", help="Add the requests of another proxy; repeat for several.")
    ] = None,
    proxy: ProxyOptions,
    as_json: Json = False,
) -> None:
    """Watch requests, hit rates, the block pool and upstreams.

    At a terminal the page is live; q or Ctrl-C ends it. In a pipe, or with --once or --json, it prints one update. The
    dashboard at /ui has more views.

    Example: kvproxy top --once
    """
    others = [ProxyClient(url, proxy.token, timeout=_TIMEOUT) for url in also or ()]
    if sys.stdout.isatty() and not once and not as_json:
        with contextlib.suppress(KeyboardInterrupt):
            _show_live([proxy.client(_TIMEOUT), *others], interval)
    else:
        _print_update([proxy.client(), *others], interval, as_json)


def _print_update(clients: Sequence[ProxyClient], interval: float, as_json: bool) -> None:
    from kvproxy.operations.proxy_statistics import rates_between, take_snapshot, take_upstreams

    before = take_snapshot(*clients)
    time.sleep(interval)
    traffic = rates_between(before, take_snapshot(*clients))
    upstreams = take_upstreams(*clients)
    if as_json:
        names = ("url", "state", "requests", "sent", "errors", "error")
        rows = [{name: getattr(upstream, name) for name in names} for upstream in upstreams]
        typer.echo(json_text(traffic.document() | {"upstreams": rows}, indent=None))
    elif (console := Console(file=sys.stdout)).is_terminal:
        console.print(live_page(traffic, upstreams, [], console.width))
    else:
        print_table(_layer_rows(traffic))
        facts = [
            ("from_cache", traffic.from_cache),
            ("error_rate", traffic.error_rate),
            ("entries", traffic.totals.entries),
        ]
        print_facts([*facts, *_summary_facts(traffic)])
        if upstreams:
            print_table(_upstream_rows(upstreams))


def _layer_rows(traffic: "TrafficStatistics") -> Iterator[Row]:
    for layer, total in traffic.requests.items():
        rate = traffic.per_second[layer]
        yield {
            "Layer": layer,
            number_column("Requests/s", "per_second"): None if rate is None else decimal(rate, 1),
            number_column("First byte, ms", "first_byte_ms"): milliseconds(traffic.first_byte_ms[layer]),
            number_column("Total", "requests"): total,
        }


def _show_live(clients: Sequence[ProxyClient], interval: float) -> None:
    from rich.live import Live

    console = Console()
    page: RenderableType
    page, before = _read_page(clients, None, console)
    first = fit_screen(page, console)
    with key_presses() as wait_for_keys, Live(first, console=console, screen=True, auto_refresh=False) as live:
        while not {"q", "Q"} & set(wait_for_keys(interval)):
            try:
                page, before = _read_page(clients, before, console)
            except ProxyUnreachable as error:
                page = error.message
            live.update(fit_screen(page, console), refresh=True)


def _read_page(clients: Sequence[ProxyClient], before: "Snapshot | None", console: Console) -> tuple[Group, "Snapshot"]:
    """Return the page on the time since a snapshot, without rates if it is None, and the new snapshot."""
    from kvproxy.operations.journal import list_records
    from kvproxy.operations.proxy_statistics import perform_optional, rates_between, take_snapshot, take_upstreams
    from kvproxy.operations.record_query import RecordQuery

    now = take_snapshot(*clients)
    upstreams = take_upstreams(*clients)
    requests = perform_optional(clients[0], list_records, RecordQuery(limit=_REQUESTS)) or []
    return live_page(rates_between(before or now, now), upstreams, requests, console.width), now


def fit_screen(page: RenderableType, console: Console) -> RenderableType:
    """Return the page; if the screen has fewer lines, the last line counts the lines that are not shown."""
    lines = console.render_lines(page, pad=False)
    hidden = len(lines) - console.height + 1
    if hidden <= 1:
        return page
    note = Text(f"{plural(hidden, 'line')} not shown: enlarge the window", no_wrap=True, overflow="ellipsis")
    return Group(SegmentLines(lines[:-hidden], new_lines=True), note)


def _facts_table(traffic: "TrafficStatistics") -> Table:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(width=14)
    facts.add_column(overflow="fold")
    for name, value in _summary_facts(traffic):
        facts.add_row(Text(name), Text(escape_controls(value)))
    return facts


def live_page(
    traffic: "TrafficStatistics",
    upstreams: "Sequence[EngineStatus]",
    records: "Sequence[RecordWithQuestions]",
    width: int,
) -> Group:
    """Return a page on the requests by layer, the upstreams, both caches, and the last requests.

    `width` is in characters. What does not fit a screen is at the end: long sentences, and requests that kvproxy log lists.
    """
    parts: list[RenderableType] = [_layer_table(traffic), ""]
    if upstreams:
        parts += [build_table(_upstream_rows(upstreams), width), ""]
    parts.append(_facts_table(traffic))
    if records:
        parts += ["", build_table(map(_request_row, records), width)]
    return Group(*parts)


def _upstream_rows(upstreams: "Sequence[EngineStatus]") -> list[Row]:
    has_models = any(upstream.models for upstream in upstreams)
    return [
        {
            Column("Upstream", is_text=True, field="url"): upstream.url,
            "State": upstream.state,
            "Running#": upstream.requests,
            "Sent#": upstream.sent,
            "Errors#": upstream.errors,
            _MODELS: (", ".join(upstream.models) or "all others") if has_models else None,
        }
        for upstream in upstreams
    ]


def _layer_table(traffic: "TrafficStatistics") -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("Layer", "Requests/s", "First byte, ms", "Total"):
        table.add_column(column, justify="left" if column == "Layer" else "right")
    for layer, total in traffic.requests.items():
        if not total and layer not in _MAIN_LAYERS:
            continue
        rate, first_byte = traffic.per_second[layer], traffic.first_byte_ms[layer]
        table.add_row(layer, "-" if rate is None else f"{rate:,.1f}", milliseconds(first_byte), f"{total:,}")
    share = traffic.from_cache
    entries = traffic.totals.entries
    stored = "the store fails" if entries is None else f"{entries:,} stored"
    table.add_row("from cache", "-" if share is None else percent(share), "", stored)
    return table


def _summary_facts(traffic: "TrafficStatistics") -> list[tuple[str, str]]:
    totals = traffic.totals
    learned = policy_sentences(totals.learned) if totals.learned else []
    return [
        *_error_facts(traffic),
        *_storage_facts(traffic.totals),
        *_pool_facts(totals.blocks),
        *(("Tier", tier_line(tier)) for tier in totals.tiers),
        *_format_counts("Lookups", totals.lookups),
        *_format_counts(
            "Not served", _named_comparisons(totals.compared), " (stored responses compared with fresh ones)"
        ),
        *_format_counts("Limited", totals.limited),
        *_money_facts(totals.saved),
        *(("" if index else "Learned", sentence) for index, sentence in enumerate(learned)),
        *([("Proxies", _OF_FIRST.format(totals.proxies))] if totals.proxies > 1 else []),
    ]


def _named_comparisons(compared: Mapping[str, int]) -> dict[str, int]:
    return {
        f"would have been {result}" if result in ("right", "wrong") else result: count
        for result, count in compared.items()
    }


def _error_facts(traffic: "TrafficStatistics") -> list[tuple[str, str]]:
    """Return the failed requests. Those with an error of the upstream are in the layer `forward`."""
    if not traffic.errors:
        return []
    rate = "" if traffic.error_rate is None else f"{percent(traffic.error_rate)} of the requests now; "
    total = ", ".join(f"{count:,} with status {status}" for status, count in traffic.errors.items())
    return [("Failed", f"{rate}since the start {total} ({_NOT_COUNTED})")]


def _storage_facts(totals: "Totals") -> list[tuple[str, str]]:
    advice, facts = "kvproxy doctor names the cause", []
    if totals.store_up is False:
        facts.append(("Store", f"fails: responses cannot be stored or found; {advice}"))
    if totals.journal_up is False:
        lost = plural(totals.lost_records, "record")
        facts.append(
            ("Journal", f"fails: requests cannot be recorded or listed, {lost} lost since the start; {advice}")
        )
    return facts


def _format_counts(name: str, counts: Mapping[str, int], note: str = "") -> list[tuple[str, str]]:
    line = ", ".join(f"{count:,} {label}" for label, count in counts.items() if count)
    return [(name, line + note)] if line else []


def _money_facts(saved: Mapping[str, Mapping[str, float]]) -> list[tuple[str, str]]:
    spent, money = (
        [row[name] for row in saved.values() if name in row and isfinite(row[name])] for name in ("spent", "money")
    )
    if not spent:
        return []
    sums = f"{amount_text(sum(spent))} spent, {amount_text(sum(money))} saved"
    return [("Money", f"{sums} at known prices, since the journal began")]


def _pool_facts(blocks: "PrefixCacheStats | None") -> list[tuple[str, str]]:
    if blocks is None:
        return [("Prefix cache", "unknown: the upstream manages it")]
    if blocks.engines:
        return _upstream_facts(blocks)
    # Only upstreams leave these values out.
    total = (blocks.num_blocks or 0) - 1
    counts = {"used": blocks.used or 0, "pinned": blocks.pinned or 0, "cached": blocks.cached or 0}
    bar = "".join(SHAPES[state] * round(_BAR_WIDTH * number / total) for state, number in counts.items())
    parts = [f"{number:,} {state}" for state, number in counts.items() if number or state != "pinned"]
    return [
        ("Pool", f"{bar:·<{_BAR_WIDTH}}"),
        ("Prefix hits", prefix_hits(blocks)),
        ("Blocks", f"{', '.join(parts)}, of {total:,}"),
        ("Evictions", f"{blocks.evictions:,} blocks"),
    ]


def _upstream_facts(blocks: "PrefixCacheStats") -> list[tuple[str, str]]:
    engines = [("Engine", engine_line(engine)) for engine in blocks.reported]
    if blocks.cached is None:
        unknown = [("Prefix cache", "unknown: not connected to the KV events")] if blocks.streams else []
        return [*unknown, *engines]
    # Without a mirror, the statistics count the prefixes of llama.cpp.
    unit = "prefixes in slots and files" if blocks.slots and blocks.complete is None else "blocks mirrored"
    offloaded = ", ".join(f"{count:,} {medium}" for medium, count in blocks.offloaded.items() if count)
    return [
        ("Prefix cache", f"{blocks.cached:,} {unit}"),
        *([("Offloaded", f"{offloaded} blocks")] if offloaded else []),
        ("Evictions", f"{blocks.evictions:,}"),
        *engines,
    ]


def _request_row(record: "RecordWithQuestions") -> Row:
    return {
        "Time": local_time(record.time).rpartition(" ")[2],
        "Layer": record.layer,
        "Reason": record.reason,
        "Cost#": money(record.cost),
        "ms#": milliseconds(record.total_ms),
        "Model?": record.model or None,
        text_column("Question"): record.question or None,
    }
