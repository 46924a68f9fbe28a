"""Who answered and why, savings and history, drawn so that they fit 80 columns."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from kvproxy.commands.safe import shown
from kvproxy.commands.table import drawn, text
from kvproxy.commands.units import duration, percent
from kvproxy.commands.watch.history import History
from kvproxy.commands.watch.page import sparkline

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

WIDE = 120
"""Cells from which on numbers are written out and texts stand side by side."""
_BESIDE_BARS = 45
"""Cells of the columns beside the bars."""
_SAVED = (
    "requests#",
    "cached#",
    "prompt#",
    "answer#",
    "reused#",
    "time#",
    "money#",
    "at least#",
)
_STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def stacked(*parts: "RenderableType") -> "Group":
    """Parts below each other. A text is shown as it is: nothing in it is markup, nor steers the terminal."""
    from rich.console import Group
    from rich.text import Text

    return Group(*(Text(shown(part)) if isinstance(part, str) else part for part in parts))


def brief(value: float) -> str:
    """A count in at most six cells."""
    if value < 10_000:
        return f"{value:,.0f}"
    step, letter = next(each for each in _STEPS if value >= each[0])
    return f"{value / step:.{1 if value < 100 * step else 0}f}{letter}"


def answered(found: Mapping[str, Any], width: int) -> "Group":
    """Who answered the requests of a time, and why: from the journal."""
    from kvproxy.journal.record import Layer

    counts = {layer: sum(values) for layer, values in found["layer"]["counts"].items()}
    total = sum(counts.values())
    if not total:
        return stacked("No request came in this time.")
    medians = found["layer"]["first_ms"]
    series = found["layer"]["counts"]
    room = max(10, width - _BESIDE_BARS)
    layers = [
        (
            layer,
            counts[layer],
            percent(counts[layer] / total),
            _milliseconds(medians.get(layer)),
            _bars(series[layer], room),
        )
        for layer in get_args(Layer)
        if layer in counts
    ]
    reasons = sorted(
        ((name, sum(values)) for name, values in found["reason"]["counts"].items()), key=lambda each: -each[1]
    )
    return stacked(
        drawn(
            ("answered by", "requests#", "share#", "median ms#", "over the time"),
            [*layers, ("in all", total, "", "", "")],
            width,
        ),
        "The median is of the milliseconds until answers began.",
        "",
        drawn(
            (text("reason"), "requests#", "share#"),
            [(name, count, percent(count / total)) for name, count in reasons],
            width,
        ),
    )


def _bars(values: Sequence[int], room: int) -> str:
    step = -(-len(values) // room)
    sums = [sum(values[start : start + step]) for start in range(0, len(values), step)]
    return sparkline(sums).replace(" ", "·")


def _milliseconds(value: float | None) -> str | None:
    return None if value is None else f"{value:,.2f}"


def savings(found: Mapping[str, Any], by: str, width: int) -> "Group":
    """What was saved since the journal began: a row for each layer, tenant, model, tag or day."""
    rows, total, wrong = found["rows"], found["total"], found["wrong"]
    if not rows:
        return stacked("Nothing was asked yet.")
    listed = [_saved(row, row["name"], width) for row in rows]
    # A request with two tags is counted under both: there is no sum of tags.
    if total is not None and len(rows) > 1:
        listed.append(_saved(total, "in all", width))
    parts: list[RenderableType] = [drawn((text(by), *_SAVED), listed, width, gap=1 if width < WIDE else 2)]
    if all(row["money"] is None for row in rows):
        parts.append('No price is known: give some in kvproxy.toml, under [journal.prices."MODEL"].')
    if wrong is not None:
        share = percent(wrong["most"])
        share = f"at most {share}" if wrong["least"] == 0 else f"{percent(wrong['least'])} to {share}"
        parts.append(f"Of the semantic hits {share} may be wrong: {wrong['told_by']}.")
    return stacked(*parts)


def _saved(row: Mapping[str, Any], name: str, width: int) -> tuple[object, ...]:
    names = ("requests", "answered", "prompt_tokens", "completion_tokens", "reused_tokens")
    counts = (f"{row[each]:,}" if width >= WIDE else brief(row[each]) for each in names)
    return (name, *counts, duration(row["seconds"]), _money(row["money"]), _money(row["least_money"]))


def _money(value: float | None) -> str | None:
    return None if value is None else f"{value:,.4f}" if value < 100 else brief(value)


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


def variants(names: Sequence[str], chosen: str) -> str:
    """The ways in which a tab may be seen, the one that is seen in brackets."""
    return "  ".join(f"[{name}]" if name == chosen else name for name in names)
