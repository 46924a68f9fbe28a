"""Reads numbers of tokens and of requests, and amounts of money, in the cells of tables."""

import re
from math import isfinite

from kvproxy.apis.json import Json

# Spreadsheets write 1,200 and, in columns with empty cells, 1200.0. In 1,2 and 1.200, the separator is ambiguous.
_COUNT = re.compile(r"(\d{1,15}|\d{1,3}(?:[,' \u00a0\u202f]\d{3}){1,4})(?:\.0+)?")


def read_count(cell: Json) -> int | None:
    """Return a count such as 1200, 1,200, or 1200.0; None for an empty or unreadable cell."""
    match = _COUNT.fullmatch(str(cell).strip())
    return None if match is None else int(re.sub(r"\D", "", match[1]))


def is_unreadable(cell: Json) -> bool:
    return cell is not None and str(cell).strip() != "" and read_count(cell) is None


def read_amount(cell: Json) -> float | None:
    """Return an amount of money such as 1.25, $1.25, or 1,200.50; None for an empty or unreadable cell."""
    try:
        number = float(str(cell).replace(",", "").replace("$", ""))
    except ValueError:
        return None
    return number if isfinite(number) else None
