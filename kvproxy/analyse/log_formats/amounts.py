"""Reads amounts of money in the cells of tables, and their currency."""

import re
from collections.abc import Collection, Iterable, Sequence
from math import isfinite

from kvproxy.apis.json import Json, JsonObject

_SIGNS = {"$": "USD", "US$": "USD", "€": "EUR", "£": "GBP"}
"""Currencies by their sign beside an amount."""
_SIGN = r"(US\$|[$€£]|[A-Z]{3})?"
_MONEY = re.compile(rf"(-?){_SIGN}\s*([\d.,eE+-]+?)\s*{_SIGN}")
# 1,200 is ambiguous: it may be 1.2.
_WITH_POINT = re.compile(
    r"-?(?:[1-9]\d{0,2}(?:,\d{3})+\.\d+|[1-9]\d{0,2}(?:,\d{3}){2,}|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
)
_WITH_COMMA = re.compile(r"-?(?:[1-9]\d{0,2}(?:\.\d{3})+,\d+|0,\d+|[1-9]\d*,(?:\d{1,2}|\d{4,}))")
_DECIMAL_POINT = re.compile(r"-?(?:[1-9]\d{0,2}(?:,\d{3})+\.\d+|0?\.\d+|[1-9]\d*\.(?:\d{1,2}|\d{4,}))")
_WITH_THOUSANDS = re.compile(r"-?[1-9]\d{0,2}(?:,\d{3})+")
_OF_COMMAS = re.compile(r"-?(?:[1-9]\d{0,2}(?:\.\d{3})+|\d+)(?:,\d+)?")


def read_amount(cell: Json) -> float | None:
    """Return an amount of money such as 1.25, $1.25, 1,25 €, or 1,200.50; None for an empty or unreadable cell."""
    number = _split(cell)[0]
    if _WITH_COMMA.fullmatch(number):
        number = _with_point(number)
    elif not _WITH_POINT.fullmatch(number):
        return None
    amount = float(number.replace(",", ""))
    return amount if isfinite(amount) else None


def currency_beside(cell: Json) -> str:
    """Return the currency that a cell has beside its amount, as USD for $1.25; empty without one."""
    sign = _split(cell)[1]
    return _SIGNS.get(sign, sign)


def currency_named(cell: Json) -> str:
    """Return the currency in a cell, in capitals; empty for an empty cell."""
    name = "" if cell is None else str(cell).strip().upper()
    return _SIGNS.get(name, name)


def with_decimal_points(rows: Sequence[tuple[int, JsonObject]], names: Collection[str]) -> list[tuple[int, JsonObject]]:
    """Return the rows of a table with 1250 for an amount 1.250 or 1,250, if other amounts of its column show the separator.

    `names` are the headings of columns with money.
    """
    marks = {name: _decimal_mark(row.get(name) for _, row in rows) for name in names}
    known = {name: mark for name, mark in marks.items() if mark}
    return [
        (number, row | {name: _plain_amount(row[name], mark) for name, mark in known.items() if name in row})
        for number, row in rows
    ]


def _decimal_mark(cells: Iterable[Json]) -> str:
    """Return the comma or the point before the decimals of amounts; empty if no amount shows it, or if amounts differ."""
    numbers = [_split(cell)[0] for cell in cells]
    has_commas, has_points = (any(map(form.fullmatch, numbers)) for form in (_WITH_COMMA, _DECIMAL_POINT))
    return "" if has_commas == has_points else "," if has_commas else "."


def _plain_amount(cell: Json, mark: str) -> Json:
    number, sign = _split(cell)
    if mark == "," and _OF_COMMAS.fullmatch(number):
        return f"{_with_point(number)} {sign}".strip()
    return f"{number.replace(',', '')} {sign}".strip() if mark == "." and _WITH_THOUSANDS.fullmatch(number) else cell


def _with_point(number: str) -> str:
    return number.replace(".", "").replace(",", ".")


def _split(cell: Json) -> tuple[str, str]:
    """Return the number in a cell, and the sign or the code of the currency beside it; two empty texts for another cell."""
    match = _MONEY.fullmatch(str(cell).strip())
    if match is None or (match[2] and match[4]):
        return "", ""
    return match[1] + match[3], match[2] or match[4] or ""
