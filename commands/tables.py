"""Prints tables: fitted to a terminal, with columns separated by tabs in a pipe, as CSV, or as JSON lines."""

import csv
import difflib
import io
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer
from typer import Option

from kvproxy.commands.formatting import decimal, json_fields, json_text, one_line, raw_text
from kvproxy.commands.output import Output, print_note, terminal
from kvproxy.errors import InvalidRequest
from kvproxy.operations.parameters import Parameter
from kvproxy.telemetry.printable_text import escape_cell
from kvproxy.units import plural

if TYPE_CHECKING:
    from rich.table import Table

_COMPUTED = {
    "tokens": "prompt_tokens,completion_tokens",
    "share": "reused_tokens,prompt_tokens",
    "cached_share": "reused_tokens,input_tokens",
    "lost_most_to": "lost",
    "lost_most_cost": "lost_costs",
    "age": "created",
    "expires_in": "expires",
}
"""Columns of tables without a field of their name in JSON, and the fields that they are computed from."""
_MIN_WIDTH = 20
_MIN_WIDTH_OF_OVERFLOW = 12
_GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """Format of a column.

    Attributes:
        is_number: align values to the right.
        digits: maximum number of characters at a terminal; None for all.
        is_text: truncate values in a narrow terminal.
        outranks_text: truncate text further rather than omit the column.
        folds: break its lines instead of truncating it, as a truncated URL is useless.
        is_optional: omit the column in a narrow terminal.
        min_width: characters that stay while optional columns can be omitted instead; at least 20.
        field: name of the value in JSON, in a pipe, and for `--columns`; None derives it from `name`.
        hides_empty: omit the column at a terminal if no row has a value. A pipe has the same columns for all values.
    """

    name: str
    is_number: bool = False
    digits: int | None = None
    is_text: bool = False
    is_optional: bool = False
    min_width: int = 0
    field: str | None = None
    outranks_text: bool = False
    folds: bool = False
    hides_empty: bool = False

    @property
    def key(self) -> str:
        return self.field or _normalize_name(self.name)


@dataclass(frozen=True, slots=True)
class Layout:
    """Options that select the columns of a table; by default, all columns that fit the terminal."""

    wide: Annotated[
        bool, Option("--wide", help="Show all columns with a value, also if they do not fit the terminal.")
    ] = False
    columns: Annotated[
        str | None, Parameter("Names of columns, or of fields of --json, to show, separated by commas.", is_list=True)
    ] = None


@dataclass(frozen=True, slots=True)
class ListLayout(Layout):
    """Options of commands that list rows."""

    csv: Annotated[bool, Option("--csv", help="Print the fields of --json as CSV.")] = False
    jsonl: Annotated[bool, Option("--jsonl", help="Print one JSON object per line.")] = False

    def __post_init__(self) -> None:
        if self.csv and self.jsonl:
            raise typer.BadParameter("give one of --csv and --jsonl")

    @property
    def is_data(self) -> bool:
        """Whether stdout receives only rows for programs."""
        return self.csv or self.jsonl


_FITTED = Layout()
Cells: TypeAlias = list[list[str]]
Row: TypeAlias = Mapping[Column | str, object]
"""Values by column; None prints as `-`.

A column given as a string is not truncated. The suffix `#` of its name means `is_number`; a last suffix `?` means `is_optional`.
"""


@cache
def digest_column(name: str, digits: int = 12, *, optional: bool = False, field: str | None = None) -> Column:
    return Column(name, digits=digits, is_optional=optional, field=field)


@cache
def number_column(
    name: str, field: str, *, optional: bool = False, outranks_text: bool = False, hides_empty: bool = False
) -> Column:
    return Column(
        name,
        is_number=True,
        is_optional=optional,
        field=field,
        outranks_text=outranks_text,
        hides_empty=hides_empty,
    )


@cache
def text_column(name: str, *, hides_empty: bool = False, field: str | None = None) -> Column:
    return Column(name, is_text=True, hides_empty=hides_empty, field=field)


def print_table(
    rows: Iterable[Row],
    *,
    title: str | None = None,
    empty: str = "nothing to list",
    layout: Layout = _FITTED,
    records: Sequence[Mapping[str, object]] = (),
) -> None:
    """Print rows under their column names. Without rows, print the message `empty` on stderr.

    A note names the columns with values that do not fit the terminal. Raises InvalidRequest if a selected column does not exist.
    `records` has the fields of each row in JSON: `layout` may select those without a column, too.
    """
    console = terminal(sys.stdout)
    columns, cells = _parse_rows(rows, raw=console is None)
    if not cells:
        typer.echo(empty, err=True)
        return
    if layout.columns is None and console is not None:
        columns, cells = _hide_empty(columns, cells, is_wide=layout.wide)
    chosen, cells = _select_columns(columns, cells, layout, records, raw=console is None)
    if title is not None:
        typer.echo(title)
    if console is None:
        _print_lines([[column.key for column in chosen], *cells])
        return
    fits_all = layout.wide or layout.columns is not None
    chosen, cells, lost = (chosen, cells, []) if fits_all else _fit_columns(chosen, cells, console.width)
    table, width = _fit_table(chosen, cells, console.width)
    # The terminal wraps the lines of a wider table, of which the user selected the columns.
    console.width = max(console.width, width) if fits_all else console.width
    console.print(table)
    if lost:
        hint = "a wider terminal shows them" if layout is _FITTED else "--wide shows all columns"
        print_note(f"not shown: {', '.join(column.name for column in lost)} ({hint})")


def add_fields(row: Row, record: Mapping[str, object], names: Iterable[str]) -> Row:
    """Return a row with columns for the named fields of the record that it lacks."""
    known = {(_parse_name(column) if isinstance(column, str) else column).key for column in row}
    added = {name: record[name] for name in names if _normalize_name(name) not in known}
    return {**row, **{Column(name, is_number=_is_number(value)): _field_value(value) for name, value in added.items()}}


def print_rows_without_names(rows: Iterable[Row], layout: Layout, records: Sequence[Mapping[str, object]] = ()) -> None:
    """Print rows without column names, separated by tabs; see `print_table`."""
    _print_lines(_select_columns(*_parse_rows(rows, raw=True), layout, records, raw=True)[1])


def _print_lines(cells: Iterable[Sequence[str]]) -> None:
    typer.echo("".join("\t".join(row) + "\n" for row in cells), nl=False)


def print_records(
    records: Iterable[object], layout: ListLayout, fields: Sequence[str] = (), *, with_names: bool = True
) -> None:
    """Print records as CSV or as JSON lines, as `layout` selects. Raises InvalidRequest for an unknown column.

    `fields` are the names of the first line of CSV if there is no record.
    """
    rows = [json_fields(record) for record in records]
    head = list(rows[0]) if rows else list(fields)
    if layout.columns is not None and head:
        names = {_normalize_name(name): name for name in head}
        head = [names[key] for key in _chosen_keys(layout.columns, names)]
        rows = [{name: row[name] for name in head} for row in rows]
    if layout.jsonl:
        for row in rows:
            typer.echo(json_text(row, indent=None))
    elif head:
        out = io.StringIO(newline="")
        writer = csv.writer(out, lineterminator="\n")
        if with_names:
            writer.writerow(head)
        writer.writerows([_csv_text(value) for value in row.values()] for row in rows)
        typer.echo(out.getvalue(), nl=False)


def _csv_text(value: object) -> object:
    """Return a value of JSON for CSV: None and an empty object are empty, a float is rounded, and a list or an object is JSON."""
    if isinstance(value, float):
        return raw_text(value)
    if value == {}:
        return None
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    return escape_cell(value if isinstance(value, str) else json_text(value, indent=None))


def table_output(
    document: Any,
    rows: Iterable[Row],
    *,
    empty: str = "nothing to list",
    layout: Layout = _FITTED,
    total: int = 0,
    is_minimum: bool = False,
    records: Sequence[Mapping[str, object]] | None = None,
) -> Output:
    """Return an output that prints a table, and a note if there are more than the listed rows.

    `is_minimum`: there may be more than `total` rows.
    `records`: see `print_table`; None takes the objects in `document`, one for each row.
    """
    if records is None and layout.columns is not None:
        records = [json_fields(record) for record in document]
    return Output(
        document,
        lambda: print_table(rows, empty=empty, layout=layout, records=records or ()),
        note=rows_note(len(document), total, is_minimum=is_minimum),
    )


def rows_note(listed: int, total: int, *, is_minimum: bool = False) -> str | None:
    """Return a sentence if not all rows are listed."""
    if total <= listed:
        return None
    row_count = f"{plural(listed, 'row')}, and there are more" if is_minimum else f"{listed:,} of {total:,} rows"
    return f"{row_count}: list all with --limit 0"


def default_limit(limit: int | None, at_terminal: int) -> int:
    """Return the number of rows to list, 0 for all: without the option, all rows in a pipe."""
    if limit is not None:
        return limit
    return at_terminal if terminal(sys.stdout) is not None else 0


def build_table(rows: Iterable[Row], width: int) -> "Table":
    """Return a table of at most `width` characters, without the columns that do not fit."""
    columns, cells, _ = _fit_columns(*_hide_empty(*_parse_rows(rows)), width)
    return _fit_table(columns, cells, width)[0]


def table_texts(rows: Iterable[Row]) -> tuple[list[str], Cells]:
    """Return the names of the columns, and the cells as a terminal shows them, without truncation."""
    columns, cells = _hide_empty(*_parse_rows(rows))
    return [column.name for column in columns], cells


def _parse_rows(rows: Iterable[Row], *, raw: bool = False) -> tuple[list[Column], Cells]:
    given = list(rows)
    columns = [_parse_name(column) if isinstance(column, str) else column for column in (given[0] if given else ())]
    return columns, [
        [raw_text(value) if raw else one_line(value) for _, value in zip(columns, row.values(), strict=True)]
        for row in given
    ]


def _parse_name(name: str) -> Column:
    kept = name.removesuffix("?")
    return Column(kept.removesuffix("#"), is_number=kept.endswith("#"), is_optional=name.endswith("?"))


def _hide_empty(columns: list[Column], cells: Cells, *, is_wide: bool = False) -> tuple[list[Column], Cells]:
    """Return the columns except empty ones that hide: in a wide table, also numbers and optional columns."""
    shown = [
        index
        for index, column in enumerate(columns)
        if not (column.hides_empty or (is_wide and (column.is_optional or column.is_number)))
        or _has_value(cells, index)
    ]
    return [columns[index] for index in shown], [[row[index] for index in shown] for row in cells]


def _select_columns(
    columns: list[Column], cells: Cells, layout: Layout, records: Sequence[Mapping[str, object]], *, raw: bool
) -> tuple[list[Column], Cells]:
    if layout.columns is None:
        return columns, cells
    columns, cells = _add_fields(columns, cells, records, raw=raw)
    places = {_normalize_name(column.name): index for index, column in enumerate(columns)}
    places |= {column.key: index for index, column in enumerate(columns)}
    keys = {column.key: column for column in columns}
    indexes = [places[name] for name in _chosen_keys(layout.columns, keys, places)]
    return [columns[index] for index in indexes], [[row[index] for index in indexes] for row in cells]


def _add_fields(
    columns: list[Column], cells: Cells, records: Sequence[Mapping[str, object]], *, raw: bool
) -> tuple[list[Column], Cells]:
    """Add a column for each field of the records without one."""
    known = {column.key for column in columns}
    names = [name for name in (records[0] if records else ()) if _normalize_name(name) not in known]
    added = [Column(name, is_number=any(_is_number(record[name]) for record in records)) for name in names]
    text = raw_text if raw else one_line
    values = [[text(_field_value(record[name])) for name in names] for record in records]
    return [*columns, *added], [row + more for row, more in zip(cells, values or [[]] * len(cells), strict=True)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _field_value(value: object) -> object:
    """Return a value of JSON for a cell: a list without its brackets, and an object as JSON."""
    if isinstance(value, float):
        return decimal(value, 3)
    if isinstance(value, list | tuple) and all(isinstance(item, str | int) for item in value):
        return ", ".join(map(str, value))
    return json_text(value, indent=None) if isinstance(value, list | tuple | dict) or is_dataclass(value) else value


def _chosen_keys(chosen: str, listed: Iterable[str], accepted: Iterable[str] | None = None) -> list[str]:
    """Return the chosen names. Raises InvalidRequest, which lists the names, if one is not accepted."""
    names = [_normalize_name(name) for name in chosen.split(",") if name.strip()]
    listed = list(listed)
    accepted = set(listed if accepted is None else accepted)
    unknown = next((name for name in names if name not in accepted), None)
    sources = _COMPUTED.get(unknown or "")
    if sources is not None and set(sources.split(",")) <= set(listed):
        raise InvalidRequest(f"the column {unknown} is only in tables, computed from other fields: use {sources}")
    similar = difflib.get_close_matches(unknown or "", listed, n=2, cutoff=0.8)
    if similar:
        raise InvalidRequest(f"there is no column {unknown!r}: did you mean {' or '.join(similar)}?")
    if unknown is not None or not names:
        raise InvalidRequest(f"there is no column {unknown or ''!r}: use some of {', '.join(listed)}")
    return names


def _normalize_name(name: str) -> str:
    return "_".join(name.lower().replace("_", " ").replace("-", " ").split())


def _fit_columns(columns: list[Column], cells: Cells, width: int) -> tuple[list[Column], Cells, list[Column]]:
    """Return the columns that fit the terminal, their cells, and the omitted columns with a value.

    Numbers without a value are omitted first, then optional columns: those without a value, those with one value in all rows,
    then the last ones. If the other ones do not fit with their names and the first column on several lines, all but the first
    one follow: those with one value, then the last ones, and texts at the end.
    """
    shown = list(range(len(columns)))

    def used(*min_widths: int) -> int:
        digits = [[row[place][: columns[place].digits] for place in shown] for row in cells]
        named = [columns[place] for place in shown]
        return sum(_column_widths(named, digits, width, *min_widths)) + _GAP * (len(shown) - 1)

    values = [_count_values(cells, index) for index in shown]
    is_empty_number = [column.is_number and not count for column, count in zip(columns, values, strict=True)]
    optional = [index for index in shown if columns[index].is_optional or (index and is_empty_number[index])]
    for index in sorted(optional, key=lambda index: (values[index], -index)):
        if used(_MIN_WIDTH, *((_MIN_WIDTH_OF_OVERFLOW,) if columns[index].outranks_text else ())) <= width:
            break
        shown.remove(index)
    for index in (index for index in optional if values[index] == 1 and index not in shown):
        # A wider column may have been omitted after it.
        shown = sorted([*shown, index])
        if used(_MIN_WIDTH) > width:
            shown.remove(index)
    if used(_MIN_WIDTH, _MIN_WIDTH_OF_OVERFLOW) > width:
        columns = [replace(column, name=column.name.replace(" ", "\n")) for column in columns]
        first = columns[0]
        if not (first.is_number or first.is_text or first.digits):
            columns[0] = replace(first, is_text=True, folds=True)
    for index in sorted(shown[1:], key=lambda index: (columns[index].is_text, values[index], -index)):
        if used(_MIN_WIDTH, _MIN_WIDTH_OF_OVERFLOW) <= width:
            break
        shown.remove(index)
    lost = [column for index, column in enumerate(columns) if index not in shown and _has_value(cells, index)]
    lost = [replace(column, name=column.name.replace("\n", " ")) for column in lost]
    return [columns[index] for index in shown], [[row[index] for index in shown] for row in cells], lost


def _count_values(cells: Cells, index: int) -> int:
    """Return 0 for a column without a value, 1 for one with the same value in all of several rows, and else 2."""
    if not _has_value(cells, index):
        return 0
    return 1 if len(cells) > 1 and len({row[index] for row in cells}) == 1 else 2


def _has_value(cells: Cells, index: int) -> bool:
    return any(row[index] != "-" for row in cells)


def _fit_table(columns: list[Column], cells: Cells, width: int) -> "tuple[Table, int]":
    from rich.table import Table
    from rich.text import Text

    cells = [[value[: column.digits] for value, column in zip(row, columns, strict=True)] for row in cells]
    widths = _column_widths(columns, cells, width, _MIN_WIDTH, _MIN_WIDTH_OF_OVERFLOW)
    if len(widths) == 1 and columns[0].folds:
        widths = [min(width, *widths)]
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column, shown in zip(columns, widths, strict=True):
        side: Literal["right", "left"] = "right" if column.is_number else "left"
        table.add_column(
            column.name,
            justify=side,
            overflow="fold" if column.folds else "ellipsis",
            no_wrap=not column.folds,
            width=shown,
            vertical="bottom",
        )
    for row in cells:
        table.add_row(*map(Text, row))
    return table, sum(widths) + _GAP * (len(widths) - 1)


def _column_widths(columns: list[Column], cells: Cells, width: int, *min_widths: int) -> list[int]:
    from rich.cells import cell_len

    names = [max(column.name.split("\n"), key=cell_len) for column in columns]
    widths = [max(map(cell_len, values)) for values in zip(names, *cells, strict=True)]
    for min_width, (index, column) in itertools.product(min_widths, enumerate(columns)):
        if column.is_text:
            excess = sum(widths) + _GAP * (len(widths) - 1) - width
            kept = max(min_width, column.min_width) if min_width == _MIN_WIDTH else min_width
            widths[index] -= max(0, min(excess, widths[index] - kept))
    return widths
