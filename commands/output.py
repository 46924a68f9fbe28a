"""Printing: facts and tables for people, JSON for scripts."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from kvproxy.commands.safe import json_text
from kvproxy.commands.tables import one_line, print_table
from kvproxy.commands.formatting import percent

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["flat", "percent", "print_facts", "print_json", "print_table", "progress_bar", "shown_progress"]


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json_text(value))


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Names and values, one a line."""
    pairs = [(name, one_line(value)) for name, value in facts]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        typer.echo(f"{name:<{width}}  {value}")


def flat(figures: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Nested figures under dotted names."""
    found: dict[str, object] = {}
    for name, value in figures.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def progress_bar() -> "Progress":
    """A progress bar on stderr, shown at a terminal only."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, disable=not console.is_terminal)


@contextlib.contextmanager
def shown_progress(doing: str) -> Iterator[Callable[[float], None]]:
    """A progress bar for as long as the block runs; the function takes the share that is done."""
    with progress_bar() as bar:
        task = bar.add_task(doing, total=1.0)
        yield lambda share: bar.update(task, completed=share)
