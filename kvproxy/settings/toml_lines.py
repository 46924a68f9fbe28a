"""Finds the line of a setting in a TOML file."""

import re
from collections import Counter
from collections.abc import Sequence

_TABLE = re.compile(r"\s*(\[{1,2})\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"""\s*([\w."'-]+)\s*=""")
SettingPath = tuple[str | int, ...]
"""Names of the tables and the setting, and the index of a table in its array."""


def line_of(text: str, path: Sequence[str | int]) -> int | None:
    """Return the line number, from 1, of a setting, or else of its table; None if neither is in the file."""
    table: SettingPath = ()
    counts: Counter[str] = Counter()
    lines: dict[SettingPath, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _TABLE.match(line)) is not None:
            name = header[2]
            table = _split(name)
            if header[1] == "[[":
                table = (*table, counts[name])
                counts[name] += 1
            lines.setdefault(table, number)
        elif (key := _KEY.match(line)) is not None:
            lines.setdefault((*table, *_split(key[1])), number)
    found = tuple(path)
    while found:
        if found in lines:
            return lines[found]
        found = found[:-1]
    return None


def _split(dotted: str) -> SettingPath:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
