"""Similar questions that were judged: both texts, how near they are, and what was decided."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvproxy.commands.table import one_line
from kvproxy.commands.units import moment
from kvproxy.commands.watch.panels import WIDE, stacked

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

_SERVED = "hit-semantic"
_NOT_KEPT = "(its text was not kept: set journal.text)"
_GONE = "(it is no longer stored)"


def matches(rows: Sequence[Mapping[str, Any]], words: str, width: int) -> "Group":
    """The matches that hold all of some words, the newest first.

    Args:
        rows: of `/admin/log`, those for which a similar question was judged.
        words: each must be a part of what is shown of the match; upper and lower case are the same.
        width: cells that there are; from `WIDE` on the questions stand side by side.
    """
    found = [row for row in rows if all(word in _searched(row) for word in words.lower().split())]
    told = f"{len(found):,} of the last {len(rows):,} judged matches"
    if words:
        told += f", with {words!r} (esc: all)"
    parts: list[RenderableType] = [told if rows else "No similar question was judged, as far as the journal goes."]
    for row in found:
        parts += ["", *_match(row, width)]
    return stacked(*parts)


def _match(row: Mapping[str, Any], width: int) -> "list[RenderableType]":
    from rich.table import Table
    from rich.text import Text

    heading = Text(f"{moment(row['time']).rpartition(' ')[2]}  {_decision(row)}", style="bold")
    scores = (
        f"similarity {_decimal(row['similarity'])}  score {_decimal(row['score'])}  "
        f"expected error {_decimal(row['error'])}  guard {row['guard'] or '-'}"
    )
    who = f"{row['model']}, {row['client'] or row['tenant']}, request {row['request_id'][:8]}"
    heading.append(f"  {one_line(scores)}", style="not bold")
    asked, stored = one_line(row["question"] or _NOT_KEPT), one_line(row["near_question"] or _GONE)
    pair = Table.grid(padding=(0, 2), expand=width >= WIDE)
    if width >= WIDE:
        for _ in range(2):
            pair.add_column(ratio=1, overflow="fold")
        pair.add_row(Text(f"asked   {asked}"), Text(f"stored  {stored}"))
    else:
        pair.add_column(width=6)
        pair.add_column(overflow="fold")
        pair.add_row(Text("asked"), Text(asked))
        pair.add_row(Text("stored"), Text(stored))
    return [heading, Text(one_line(who)), pair]


def _decision(row: Mapping[str, Any]) -> str:
    return "served" if row["reason"] == _SERVED else one_line(row["reason"])


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _searched(row: Mapping[str, Any]) -> str:
    names = ("question", "near_question", "reason", "layer", "model", "client", "tenant", "guard", "request_id")
    return " ".join(str(row[name] or "") for name in names).lower() + " " + _decision(row)
