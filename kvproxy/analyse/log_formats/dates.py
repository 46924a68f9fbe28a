"""Reads the dates of spreadsheets, in which the day or the month is first, as in 21/11/2026."""

import re
from collections.abc import Iterable, Sequence

from kvproxy.analyse.log_formats.fact_columns import DATES, fact_headings
from kvproxy.analyse.log_formats.log_times import TIME_FIELDS
from kvproxy.apis.json import Json, JsonObject

_DATE = re.compile(r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(?:[T ]+(\d{1,2})(:\d{2}.*))?")
_MONTHS = 12
_END = "end_time"


def with_iso_dates(rows: Sequence[tuple[int, JsonObject]]) -> list[tuple[int, JsonObject]]:
    """Return the rows of a table with such dates as 2026-11-21, if their column shows which number is the day."""
    names = dict.fromkeys(name for _, row in rows for name in row)
    times = {name for name, fact in fact_headings(names).items() if fact in (*TIME_FIELDS, *DATES)} | {_END}
    orders = {name: _is_day_first(row.get(name) for _, row in rows) for name in names if name in times}
    known = {name: is_first for name, is_first in orders.items() if is_first is not None}
    if not known:
        return list(rows)
    return [
        (number, row | {name: _iso(row[name], is_first) for name, is_first in known.items() if name in row})
        for number, row in rows
    ]


def _is_day_first(cells: Iterable[Json]) -> bool | None:
    """Return whether the day is before the month, as in all dates with points that show no month first; None if unknown."""
    dates = [match for cell in cells if isinstance(cell, str) and (match := _DATE.fullmatch(cell.strip()))]
    is_day_first = any(int(date[1]) > _MONTHS for date in dates)
    is_month_first = any(int(date[3]) > _MONTHS for date in dates)
    if is_day_first == is_month_first:
        has_points = all(date[2] == "." for date in dates)
        return True if dates and has_points and not is_month_first else None
    return is_day_first


def _iso(cell: Json, is_day_first: bool) -> Json:
    match = _DATE.fullmatch(cell.strip()) if isinstance(cell, str) else None
    if match is None:
        return cell
    first, _, second, year, hour, rest = match.groups()
    day, month = (first, second) if is_day_first else (second, first)
    date = f"{year}-{month:0>2}-{day:0>2}"
    return date if hour is None else f"{date}T{hour:0>2}{rest}"
