"""Prints the result of a command: as text for people, or as JSON."""

import contextlib
import re
import select
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import typer

from kvproxy.commands.formatting import json_text, may_be_terminal, one_line, raw_text
from kvproxy.telemetry.printable_text import escape_text

if TYPE_CHECKING:
    from rich.console import Console

    from kvproxy.analyse.charts import Chart

_CHART_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Output:
    """The result of a command.

    Attributes:
        document: printed with `--json`.
        show: prints the result for people, and charts after it at a terminal.
        records: rows of the document for CSV and JSON lines; None takes the document, which is then a list.
        fields: names of the fields of a row, if the options of the command do not tell them, for CSV without rows.
        note: sentence about the result for stderr.
    """

    document: Any
    show: Callable[[], None]
    exit_code: int = 0
    charts: "Sequence[Chart]" = ()
    records: Sequence[object] | None = None
    fields: Sequence[str] = ()
    note: str | None = None


def _console(file: TextIO) -> "Console":
    from rich.console import Console

    return Console(file=file)


def terminal(file: TextIO) -> "Console | None":
    """Return the terminal of an output; None for a pipe, which needs no import of rich."""
    if not may_be_terminal(file):
        return None
    console = _console(file)
    return console if console.is_terminal else None


def check_reader() -> None:
    """Raise BrokenPipeError if the reader of stdout has exited, which a command without output would not notice."""
    try:
        poll = select.poll()
        poll.register(sys.stdout, 0)
    except (ValueError, OSError, AttributeError):
        return  # Not a file, as in tests, or a system without poll.
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError


def text_output(document: Any, text: str) -> Output:
    return Output(document, lambda: print_text(text))


def print_json(value: Any) -> None:
    typer.echo(json_text(value))


def print_facts(facts: Iterable[tuple[str, object]], *, for_people: bool = False) -> None:
    """Print names and values on stdout: in a pipe raw and after a tab, at a terminal with wrapped lines.

    `for_people`: the facts are a part of a text, and have the form of a terminal in a pipe, too.
    """
    console = terminal(sys.stdout)
    if console is None and not for_people:
        for name, value in facts:
            typer.echo(f"{name}\t{raw_text(value)}")
        return
    pairs = [(name, one_line(value)) for name, value in facts]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        line = f"{name:<{width}}  {value}"
        typer.echo(line if console is None else _wrap_line(line, console.width, width + 2))


def print_text(text: str, *, err: bool = False) -> None:
    """Print text on stdout, or on stderr if `err` is set. At a terminal, wrap long lines between words."""
    text = escape_text(text)
    console = terminal(sys.stderr if err else sys.stdout)
    if console is not None:
        lines = (_wrap_line(line, console.width, _indent_of_last_column(line)) for line in text.split("\n"))
        text = "\n".join(lines)
    typer.echo(text, err=err)


def _indent_of_last_column(line: str) -> int:
    columns = re.match(r" *(?:\S+ {2,})*", line)
    return len(columns[0] if columns else "")


def _wrap_line(line: str, width: int, indent: int) -> str:
    # A path or a digest stays on one line, so that it can be copied.
    indent = max(0, min(indent, width - max(map(len, line.split()), default=0)))
    return "\n".join(
        textwrap.wrap(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
    )


def print_note(sentence: str) -> None:
    print_text(sentence, err=True)


def print_charts(charts: "Sequence[Chart]", *, always: bool = False) -> None:
    console = terminal(sys.stdout)
    if not charts or (console is None and not always):
        return
    from kvproxy.analyse.charts import draw

    console = console or _console(sys.stdout)
    typer.echo(
        draw(charts, min(console.width, _CHART_WIDTH), with_colours=not console.no_color and console.is_terminal)
    )


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Callable[[float], None]]:
    """Show a bar on stderr at a terminal. Yield a function that sets the completed share, from 0 to 1."""
    from rich.progress import Progress

    console = _console(sys.stderr)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda share: bar.update(task, completed=share)
