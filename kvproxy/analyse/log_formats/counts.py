"""Reads numbers of tokens and of requests, and amounts of money, in the cells of tables."""

import re
from math import isfinite

from kvproxy.apis.json import Json

# Spreadsheets write 1,200 and, in columns with empty cells, 1200.0. In 1,2, 1.200, and 100.000, the separator is ambiguous.
_COUNT = re.compile(r"(\d{1,15}|\d{1,3}(?:[,' \u00a0\u202f]\d{3}){1,4})(?:\.0{1,2})?")
# In amounts, 1,200 is ambiguous, too: it may be 1.2.
_AMOUNT = re.compile(
    r"-?\$?(?:[1-9]\d{0,2}(?:,\d{3})+\.\d+|[1-9]\d{0,2}(?:,\d{3}){2,}|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
)


def read_count(cell: Json) -> int | None:
    """Return a count such as 1200, 1,200, or 1200.0; None for an empty or unreadable cell."""
    match = _COUNT.fullmatch(str(cell).strip())
    return None if match is None else int(re.sub(r"\D", "", match[1]))


def is_unreadable(cell: Json) -> bool:
    return cell is not None and str(cell).strip() != "" and read_count(cell) is None


def read_amount(cell: Json) -> float | None:
    """Return an amount of money such as 1.25, $1.25, or 1,200.50; None for an empty or unreadable cell."""
    text = str(cell).strip()
    number = float(re.sub("[,$]", "", text)) if _AMOUNT.fullmatch(text) else None
    return number if number is not None and isfinite(number) else None
