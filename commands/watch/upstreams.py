"""Upstreams with their mirrors and slots, or the tiers of the embedded engine."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvproxy.commands.blocks_slots import slot_rows
from kvproxy.commands.blocks_tiers import tier_line
from kvproxy.commands.engines import engine_line
from kvproxy.commands.safe import shown
from kvproxy.commands.table import digest, drawn, text
from kvproxy.commands.units import percent, size
from kvproxy.commands.watch.panels import stacked

if TYPE_CHECKING:
    from rich.console import Group, RenderableType


def upstreams(found: Mapping[str, Any], width: int) -> "Group":
    """Each upstream with its state, its load, its mirror or slots, and what it says of itself; then slots and files.

    Args:
        found: see `parts.find`.
        width: cells that there are.
    """
    from rich.table import Table
    from rich.text import Text

    if not found["rows"]:
        tiers = [tier_line(tier) for tier in found["tiers"]] or ["There is no tier beyond the pool."]
        return stacked("No upstream: the embedded engine answers here.", *tiers)
    parts: list[RenderableType] = []
    for row in found["rows"]:
        state = Text(f"{shown(row['url'])}  ", style="bold")
        state.append(row["state"], style="" if row["state"] == "up" else "reverse")
        facts = Table.grid(padding=(0, 2))
        facts.add_column(width=12)
        facts.add_column(overflow="fold")
        for name, value in _facts(row):
            facts.add_row(Text(f"  {name}"), Text(shown(value)))
        parts += [state, facts]
    return stacked(*parts, *_slots(found["blocks"], found["chains"], width))


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
        complete = "complete" if row["complete"] else "incomplete"
        facts.append(("mirror", f"{row['cached_blocks'] or 0:,} blocks, {complete}"))
        facts += [("", _stream(stream)) for stream in row["streams"]]
    if row["figures"]:
        facts.append(("engine", engine_line(row["figures"])))
    if row["slots"]:
        slots = row["slots"]
        facts.append(
            (
                "slots",
                f"{slots['slots']} slots with {slots['tokens']:,} tokens, {slots['saved']:,} saved"
                f" ({size(slots['saved_bytes'])}), {slots['restores']:,} restored",
            )
        )
    for model, reuse in row["reuse"].items():
        facts.append(("reused", f"{model}: {_reuse(reuse)}"))
    facts += [("note", note) for note in row["notes"]]
    facts += [("advice", advice) for advice in row["advice"]]
    return facts


def _stream(stream: Mapping[str, Any]) -> str:
    connected = "following" if stream["connected"] else "not connected to"
    known = "complete" if stream["complete"] else "incomplete"
    return f"{connected} {stream['endpoint']}, {stream['batches']:,} batches, {known}"


def _reuse(reuse: Mapping[str, Any]) -> str:
    prompt, cached = reuse["prompt_tokens"], reuse["cached_tokens"]
    told = f"{cached:,} of {prompt:,} prompt tokens" + (f" ({percent(cached / prompt)})" if prompt else "")
    if reuse["predictions"]:
        told += (
            f"; {reuse['exact']:,} of {reuse['predictions']:,} predictions exact, {reuse['too_high']:,} too high,"
            f" {reuse['too_low']:,} too low"
        )
    return told


def _slots(
    blocks: Sequence[Mapping[str, Any]], chains: Sequence[Mapping[str, Any]], width: int
) -> "list[RenderableType]":
    """A row for each slot of llama.cpp and each file; blocks of other engines are left out."""
    rows = slot_rows(blocks, chains)
    columns = ("in", "state", "tokens#", digest("hash", 8), text("engine"), text("begins"))
    return ["", drawn(columns, rows, width, gap=1)] if rows else []
