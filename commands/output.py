"""Prints results: facts and sentences for people, JSON for scripts."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import typer

from kvproxy.commands.formatting import json_text, one_line


@dataclass(frozen=True, slots=True)
class Output:
    """The result of a command.

    Attributes:
        document: printed with `--json`.
        show: prints the result for people.
    """

    document: Any
    show: Callable[[], None]
    exit_code: int = 0


def sentence(document: Any, text: str) -> Output:
    """Return an output that people read as one or more sentences."""
    return Output(document, lambda: typer.echo(text))


def print_json(value: Any) -> None:
    """Print one JSON document."""
    typer.echo(json_text(value))


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line."""
    pairs = [(name, one_line(value)) for name, value in facts]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        typer.echo(f"{name:<{width}}  {value}")


def print_note(sentence: str) -> None:
    """Print a sentence on stderr, beside the result."""
    typer.echo(sentence, err=True)


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on stderr, at a terminal only; yield a function that takes the share done."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda share: bar.update(task, completed=share)
