"""Draws the block pool, a cell for each block or run of blocks."""

from typing import TYPE_CHECKING, Any

import typer

from kvproxy.commands.formatting import percent

if TYPE_CHECKING:
    from rich.text import Text

SHAPES = {"free": "·", "cached": "▒", "used": "█", "pinned": "▓", "null": "0"}
COLOURS = {"free": "bright_black", "cached": "cyan", "used": "green", "pinned": "yellow", "null": "bright_black"}
_BUSIEST_FIRST = ("used", "pinned", "cached", "free")
_ROWS = 16
_NARROWEST, _WIDEST = 20, 100


def draw_pool(states: list[str], stats: dict[str, Any]) -> None:
    """Print the pool with a legend and its figures.

    Args:
        states: of every block, in the order of their ids.
        stats: figures of the pool.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console()
    width = max(_NARROWEST, min(console.width, _WIDEST) - 2)
    # One cell is one block while they fit, else a run of blocks that shows its busiest state.
    per_cell = -(-len(states) // (width * _ROWS))
    cells = [_busiest(states[start : start + per_cell]) for start in range(0, len(states), per_cell)]
    for start in range(0, len(cells), width):
        line = Text(" ")
        for state in cells[start : start + width]:
            line.append(SHAPES[state], COLOURS[state])
        console.print(line, soft_wrap=True)
    console.print(_legend(stats, per_cell), soft_wrap=True)
    typer.echo(
        f" hit rate {percent(stats['hit_rate'])} ({stats['hits']:,} of {stats['queries']:,} prompt tokens),"
        f" {stats['evictions']:,} evictions, {stats['block_size']} tokens a block"
    )
    for group in group_lines(stats["groups"]):
        typer.echo(f" {group}")


def group_lines(groups: list[dict[str, Any]]) -> list[str]:
    """A line for each attention group with its share of the pool; none for a model that has one with full attention."""
    return [f"{group_name(group)}: {group['used']:,} blocks used, {group['cached']:,} cached" for group in groups]


def group_name(group: dict[str, Any]) -> str:
    """An attention group in words."""
    reach = f" of {group['reach']:,} tokens" if group["reach"] else ""
    return f"group {group['number']}, {group['kind'].replace('_', ' ')}{reach}"


def _legend(stats: dict[str, Any], per_cell: int) -> "Text":
    from rich.text import Text

    legend = Text(" ")
    counts = stats | {"free": stats["free"] - stats["cached"], "used": stats["used"] - stats["pinned"]}
    for state in _BUSIEST_FIRST if stats["pinned"] else ("used", "cached", "free"):
        legend.append(f"{SHAPES[state]} {state} ", COLOURS[state])
        legend.append(f"{counts[state]:,}   ")
    return legend.append(f"({'one block a cell' if per_cell == 1 else f'{per_cell} blocks a cell'})", "bright_black")


def _busiest(states: list[str]) -> str:
    return next((state for state in _BUSIEST_FIRST if state in states), "null")
