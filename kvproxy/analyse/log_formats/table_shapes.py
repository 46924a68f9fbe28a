"""Brings tables of spreadsheets into one shape: money with its currency in the cell, and one column for the period."""

import re
from collections.abc import Collection, Iterable, Sequence
from math import isclose

from kvproxy.analyse.log_formats.amounts import currency_beside, currency_named, read_amount
from kvproxy.analyse.log_formats.counts import read_count
from kvproxy.analyse.log_formats.periods import Unit, read_period
from kvproxy.apis.json import Json, JsonObject
from kvproxy.units import letters_of

_Rows = Sequence[tuple[int, JsonObject]]
_CODES = (
    "AED AUD BRL CAD CHF CNY CZK DKK EUR GBP HKD HUF ILS INR JPY KRW MXN NOK NZD PLN SEK SGD TRY TWD USD ZAR".split()
)
_CURRENCY = rf"(US\$|[$€£]|{'|'.join(_CODES)})"
_WITH_CURRENCY = re.compile(
    rf"(?P<name>.*?\w)(?:\s*[(\[]\s*{_CURRENCY}\s*[)\]]|(?:\s+in\s+|[\s_,-]+){_CURRENCY})", re.IGNORECASE
)
_YEARS = "year", "jahr"
_PARTS: dict[str, tuple[Unit, str]] = {
    **dict.fromkeys(("month", "monat"), ("month", "")),
    **dict.fromkeys(("quarter", "quartal"), ("quarter", "Q")),
    **dict.fromkeys(("week", "woche"), ("week", "W")),
}
"""Columns with a period without its year: its unit, and the letter before its number."""
_DAY = "day"
_IN_DOLLARS = "($)"
_CENT = 0.01


def with_currencies(rows: _Rows, money: Collection[str], known: Collection[str]) -> _Rows:
    """Return the rows of a table with `3.50 EUR` in `Cost` for 3.50 in `Cost (EUR)`.

    Of several columns with one name, the first one counts.

    Args:
        money: names of columns with money, without punctuation.
        known: headings that stay.
    """
    names = dict.fromkeys(name for _, row in rows for name in row)
    renamed: dict[str, tuple[str, str]] = {}
    for name in names:
        match = _WITH_CURRENCY.fullmatch(name.strip())
        if match is not None and name not in known and letters_of(match["name"]) in money:
            title, currency = match["name"], currency_named(match[2] or match[3])
            if title not in names and title not in (title for title, _ in renamed.values()):
                renamed[name] = title, currency
    if not renamed:
        return rows
    return [(number, dict(_renamed(row, renamed))) for number, row in rows]


def _renamed(row: JsonObject, renamed: dict[str, tuple[str, str]]) -> Iterable[tuple[str, Json]]:
    for name, cell in row.items():
        title, currency = renamed.get(name, (name, ""))
        yield title, f"{cell} {currency}" if currency and cell not in (None, "") and not currency_beside(cell) else cell


def with_years(rows: _Rows) -> _Rows:
    """Return the rows of a table with 2026-10 in the column of months, if another column has the year; also of other periods."""
    names = {letters_of(name): name for _, row in rows for name in row}
    year = next((names[name] for name in _YEARS if name in names), None)
    part = next((name for name in _PARTS if name in names), None)
    if year is None or part is None:
        return rows
    (unit, letter), column = _PARTS[part], names[part]
    if any(read_period(row.get(column), unit) is not None for _, row in rows):
        return rows
    return [(number, _with_year(row, year, column, letter, names.get(_DAY))) for number, row in rows]


def _with_year(row: JsonObject, year: str, column: str, letter: str, day: str | None) -> JsonObject:
    number, cell = read_count(row.get(year)), str(row.get(column, "")).strip()
    if number is None or not cell:
        return row
    count = read_count(cell)
    period = f"{number}-{cell}" if count is None else f"{number}-{letter}{count:0{1 if letter else 2}}"
    others = {name: value for name, value in row.items() if name != year}
    if day is not None and not letter and (day_number := read_count(row.get(day))) is not None:
        return others | {day: f"{period}-{day_number:02}"}
    return others | {column: period}


def with_items_in_rows(rows: _Rows) -> _Rows:
    """Return the rows of a table with an amount for each item, if its columns are items, such as `Amazon Bedrock($)`.

    AWS Cost Explorer exports such tables, with the days in the first column, and sums in a first row and in a last column.
    """
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    items = [name for name in names if name.endswith(_IN_DOLLARS) and not name.startswith("Total ")]
    if not items or any(not name.endswith(_IN_DOLLARS) for name in names[1:]):
        return rows
    return [
        (number, {"date": row[names[0]], "item": item.removesuffix(_IN_DOLLARS), "cost": f"{row[item]} USD"})
        for number, row in rows
        for item in items
        if read_period(row.get(names[0])) is not None and row.get(item) not in (None, "")
    ]


def with_periods_in_rows(rows: _Rows) -> _Rows:
    """Return the rows of a table with an amount for each period, if two or more of its columns are periods, such as months."""
    names = dict.fromkeys(name for _, row in rows for name in row)
    periods = {name: "date" if read_period(name) else "month" for name in names if read_period(name, "month")}
    if len(periods) < 2:
        return rows
    if len(rows) > 2 and all(_is_sum([row.get(name) for _, row in rows]) for name in periods):
        rows = rows[:-1]
    return [
        (
            number,
            {other: value for other, value in row.items() if other not in periods} | {date: name, "amount": row[name]},
        )
        for number, row in rows
        for name, date in periods.items()
        if row.get(name) not in (None, "")
    ]


def _is_sum(cells: Sequence[Json]) -> bool:
    """Whether the last amount is the sum of those above."""
    *above, last = (read_amount(cell) for cell in cells)
    return last is not None and isclose(sum(filter(None, above)), last, rel_tol=1e-6, abs_tol=_CENT)
