"""Writes the result of an analysis as one HTML file, with the facts that a reader needs to judge it."""

import html
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from kvproxy.analyse.charts import Chart, save
from kvproxy.units import FIRST_DATE, format_seconds

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}table{border-collapse:collapse}"
    "td,th{padding:.2rem .8rem;border-bottom:1px solid #ddd;text-align:right}svg{max-width:100%;height:auto}"
    ".facts td,.facts th{text-align:left;vertical-align:top}code{overflow-wrap:anywhere}"
)
# Times before 2001 count from the start of a trace.


@dataclass(frozen=True, slots=True)
class Source:
    """The input of an analysis, and its command.

    Attributes:
        command: command line.
        version: version of kvproxy.
        file: paths of the log or traces.
        read_as: format, and what was not read; empty without.
        period: times of the first and the last request in seconds, since the epoch or the start of a trace; None if unknown.
        requests, tokens: number of requests, and of prompt tokens.
        currency: None if no money was computed.
    """

    command: str
    version: str
    file: str
    read_as: Sequence[str]
    period: tuple[float, float] | None
    requests: int
    tokens: int
    currency: str | None

    def facts(self) -> list[tuple[str, str]]:
        return [
            ("Command", self.command),
            ("Version", f"kvproxy {self.version}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
            ("File", self.file),
            *(("Format", line) for line in self.read_as),
            ("Period", describe_period(self.period)),
            ("Requests", f"{self.requests:,}"),
            ("Prompt tokens", f"{self.tokens:,}"),
            ("Currency", self.currency or "no prices were used"),
        ]


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first column names the rows."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    summary: Sequence[str]
    source: Source
    charts: Sequence[Chart]
    tables: Sequence[Table]
    assumptions: Sequence[str] = field(default=())


def describe_period(period: tuple[float, float] | None) -> str:
    if period is None:
        return "unknown: the file has no times"
    start, end = period
    length = format_seconds(round(end - start))
    if start < FIRST_DATE:
        return length
    first, last = (datetime.fromtimestamp(time, UTC) for time in period)
    return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC ({length})"


def write_report(report: Report, path: Path) -> None:
    """Raises OSError."""
    with tempfile.TemporaryDirectory() as folder:
        save(report.charts, Path(folder) / "plot.svg")
        picture_text = (Path(folder) / "plot.svg").read_text()
    svg = picture_text[picture_text.index("<svg") :]
    title = html.escape(report.title)
    facts = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{_code(value) if name == 'Command' else html.escape(value)}</td></tr>"
        for name, value in report.source.facts()
    )
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1>{''.join(f'<p>{html.escape(line)}</p>' for line in report.summary)}"
        f'<table class="facts">{facts}</table>{svg}{"".join(map(_table, report.tables))}'
        f"<h2>Assumptions</h2><ul>{''.join(f'<li>{html.escape(line)}</li>' for line in report.assumptions)}</ul></html>\n"
    )


def _code(text: str) -> str:
    return f"<code>{html.escape(text)}</code>"


def _table(table: Table) -> str:
    title = f"<h2>{html.escape(table.title)}</h2>" if table.title else ""
    return f"{title}<table>{_cells(table.head, 'th')}{''.join(_cells(row, 'td') for row in table.rows)}</table>"


def _cells(row: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"
