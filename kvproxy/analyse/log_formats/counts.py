"""Reads numbers of tokens and of requests in the cells of tables."""

import re

from kvproxy.apis.json import Json

# Spreadsheets write 1,200 and, in columns with empty cells, 1200.0. In 1,2, 1.200, and 100.000, the separator is ambiguous.
_COUNT = re.compile(r"(\d{1,15}|\d{1,3}(?:[,' \u00a0\u202f]\d{3}){1,4})(?:\.0{1,2})?")


def read_count(cell: Json) -> int | None:
    """Return a count such as 1200, 1,200, or 1200.0; None for an empty or unreadable cell."""
    match = _COUNT.fullmatch(str(cell).strip())
    return None if match is None else int(re.sub(r"\D", "", match[1]))


def is_unreadable(cell: Json) -> bool:
    return cell is not None and str(cell).strip() != "" and read_count(cell) is None
