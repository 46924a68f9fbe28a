"""Tables: for people at a terminal, and for other programs in a pipe.

At a terminal a table is as wide as it must be; only columns that may be cut are, and only where the terminal is too
narrow. In a pipe nothing is cut, columns are separated by tabs, and every row is one line.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import typer

from kvproxy.commands.safe import shown as written_out

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Column:
    """How a column is shown.

    Attributes:
        name: its header.
        right: whether it is aligned to the right, as numbers are.
        digits: how many first characters a terminal shows, as of a digest; None shows all.
        cut: whether a narrow terminal may cut it.
    """

    name: str
    right: bool = False
    digits: int | None = None
    cut: bool = False


def digest(name: str, digits: int = 12) -> Column:
    """A column of ids or hashes, of which a terminal shows the first digits."""
    return Column(name, digits=digits)


def text(name: str) -> Column:
    """A column of long texts, such as prompts, that a narrow terminal cuts."""
    return Column(name, cut=True)


_LEAST_TEXT = 20
_GAP = 2


def print_table(
    columns: Sequence[Column | str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    empty: str = "nothing to list",
) -> None:
    """Print rows under their columns' names.

    Args:
        columns: a text alone is a column of that name that is never cut; a `#` at its end aligns it to the right.
        rows: as many values each as there are columns; None is shown as `-`.
        title: a line above the table.
        empty: what to say, on stderr, when there are no rows.
    """
    from rich.console import Console

    shown, cells = _given(columns, rows)
    if not cells:
        typer.echo(empty, err=True)
        return
    if title is not None:
        typer.echo(title)
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        for row in [[column.name for column in shown], *cells]:
            typer.echo("\t".join(row))
        return
    table, width = _table(shown, cells, console.width)
    # Where even that does not fit, the terminal breaks the lines: a URL that is cut is of no use.
    console.width = max(console.width, width)
    console.print(table)


def drawn(columns: Sequence[Column | str], rows: Iterable[Sequence[object]], width: int, *, gap: int = _GAP) -> "Table":
    """The same table for a screen of so many cells; `gap` of them lie between two columns."""
    shown, cells = _given(columns, rows)
    return _table(shown, cells, width, gap)[0]


def _given(columns: Sequence[Column | str], rows: Iterable[Sequence[object]]) -> tuple[list[Column], list[list[str]]]:
    shown = [_column(column) if isinstance(column, str) else column for column in columns]
    return shown, [[one_line(value) for value in row] for row in rows]


def _column(name: str) -> Column:
    return Column(name.rstrip("#"), right=name.endswith("#"))


def _table(columns: list[Column], cells: list[list[str]], room: int, gap: int = _GAP) -> "tuple[Table, int]":
    """The table, and how wide it is."""
    from rich.table import Table
    from rich.text import Text

    cells = [[value[: column.digits] for value, column in zip(row, columns, strict=True)] for row in cells]
    widths = _widths(columns, cells, room, gap)
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        side: Literal["right", "left"] = "right" if column.right else "left"
        table.add_column(column.name, justify=side, overflow="ellipsis", no_wrap=True, width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    return table, sum(widths) + gap * (len(widths) - 1)


def _widths(columns: list[Column], cells: list[list[str]], room: int, gap: int) -> list[int]:
    """How wide each column is: as wide as its widest cell, less what those that may be cut give up."""
    from rich.cells import cell_len

    names = [column.name for column in columns]
    widths = [max(map(cell_len, values)) for values in zip(names, *cells, strict=True)]
    for index, column in enumerate(columns):
        if column.cut:
            excess = sum(widths) + gap * (len(widths) - 1) - room
            widths[index] -= max(0, min(excess, widths[index] - _LEAST_TEXT))
    return widths


def one_line(value: object) -> str:
    """A value as text without line ends and tabs; whole numbers with separators."""
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return written_out(" ".join(str(value).split()))
