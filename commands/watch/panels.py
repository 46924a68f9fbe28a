"""Upstreams, savings and history, drawn so that they fit 80 columns."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvproxy.commands.engines import engine_line
from kvproxy.commands.safe import shown
from kvproxy.commands.units import duration, percent, size
from kvproxy.commands.watch.history import History
from kvproxy.commands.watch.page import sparkline

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_SAVED = (
    ("answered", "answered"),
    ("prompt_tokens", "prompt tokens"),
    ("completion_tokens", "answer tokens"),
    ("reused_tokens", "reused tokens"),
    ("seconds", "seconds"),
    ("money", "money"),
)


def savings(saved: Mapping[str, Mapping[str, float]]) -> "Table | str":
    """What was saved since the journal began: a row for each figure, a column for each layer that saved something."""
    from rich.table import Table

    layers = [layer for layer, figures in saved.items() if any(figures.values())]
    if not layers:
        return "Nothing was saved yet."
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("saved")
    for layer in (*layers, "in all"):
        table.add_column(shown(layer), justify="right")
    for name, label in _SAVED:
        values = [saved[layer].get(name) for layer in layers]
        known = [value for value in values if value is not None]
        if known:
            table.add_row(label, *(_figure(name, value) for value in (*values, sum(known))))
    return table


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name == "money":
        return f"{value:,.4f}"
    # Ten digits and their commas are as much as a column of six bears.
    return (f"{value:,.1f}" if name == "seconds" else f"{value:,.0f}") if value < 1e9 else f"{value / 1e6:,.0f}M"


def upstreams(rows: Sequence[Mapping[str, Any]]) -> "Group | str":
    """Each upstream with its state, its load, its mirror or slots, and what it says of itself."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return "No upstream: the embedded engine answers here."
    parts: list[Text | Table] = []
    for row in rows:
        state = Text(f"{shown(row['url'])}  ", style="bold")
        state.append(row["state"], style="" if row["state"] == "up" else "reverse")
        facts = Table.grid(padding=(0, 2))
        facts.add_column(width=12)
        facts.add_column(overflow="fold")
        for name, value in _facts(row):
            facts.add_row(Text(f"  {name}"), Text(shown(value)))
        parts += [state, facts]
    return Group(*parts)


def _facts(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [
        (
            "requests",
            f"{row['requests']:,} under way with {row['load']:,} tokens to do, {row['sent']:,} sent,"
            f" {row['failures']:,} failures in a row, {row['ejections']:,} ejections, weight {row['weight']:g}",
        )
    ]
    if row["error"]:
        facts.append(("error", row["error"]))
    if row["streams"]:
        connected = sum(stream["connected"] for stream in row["streams"])
        complete = "complete" if row["complete"] else "incomplete"
        facts.append(
            (
                "mirror",
                f"{row['cached_blocks'] or 0:,} blocks, {complete}, {connected} of {len(row['streams'])} streams"
                " connected",
            )
        )
    if row["figures"]:
        facts.append(("engine", engine_line(row["figures"])))
    if row["slots"]:
        slots = row["slots"]
        facts.append(
            (
                "slots",
                f"{slots['slots']} slots, {slots['saved']:,} saved ({size(slots['saved_bytes'])}),"
                f" {slots['restores']:,} restored",
            )
        )
    for model, reuse in row["reuse"].items():
        told = f"{model}: {reuse['cached_tokens']:,} of {reuse['prompt_tokens']:,} prompt tokens"
        if reuse["predictions"]:
            told += f"; {reuse['exact']:,} of {reuse['predictions']:,} predictions exact"
        facts.append(("reused", told))
    facts += [("note", note) for note in row["notes"]]
    facts += [("advice", advice) for advice in row["advice"]]
    return facts


def history(past: History, interval: float, width: int) -> "Table":
    """Every figure since the screen was opened, with its least, last and greatest value."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("figure")
    for name in ("last", "most"):
        table.add_column(name, justify="right")
    table.add_column(f"{duration(len(past) * interval)} until now")
    for name in past.names():
        values = past.series(name, max(10, width - 48))
        table.add_row(name, _plain(name, values[-1]), _plain(name, max(values)), sparkline(values))
    return table


def _plain(name: str, value: float) -> str:
    if name.endswith("share"):
        return percent(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}"
