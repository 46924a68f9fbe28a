"""Printing: tables for people, JSON for scripts. Rich honours NO_COLOR and pipes by itself."""

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import typer


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """A table; columns whose name ends in `#` are aligned to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        right = column.endswith("#")
        table.add_column(column.rstrip("#"), justify="right" if right else "left", overflow="ellipsis", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    Console().print(table)


def flat(figures: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Nested figures under dotted names."""
    found: dict[str, object] = {}
    for name, value in figures.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Names and values, one a line."""
    pairs = [(name, _cell(value)) for name, value in facts]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        typer.echo(f"{name:<{width}}  {value}")


@contextlib.contextmanager
def shown_progress(doing: str) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr for as long as the block runs; the function takes the share that is done."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def age(created: float) -> str:
    """Time since a moment, in the largest unit that fits."""
    seconds = max(0.0, time.time() - created)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
