"""Finds the line of a TOML file on which a setting stands, which its parser does not tell."""

import re
from collections import Counter
from collections.abc import Sequence

_TABLE = re.compile(r"\s*(\[{1,2})\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"""\s*([\w."'-]+)\s*=""")
Place = tuple[str | int, ...]


class Misplaced(ValueError):
    """A setting that does not fit another one; `place` says where it stands."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(message)
        self.place = place


def line_of(text: str, place: Sequence[str | int]) -> int | None:
    """The line, from 1, of a setting, or else of the table that it should be in.

    Args:
        text: the file.
        place: the names on the way to the setting, and the number of a table in its array.
    """
    table: Place = ()
    seen: Counter[str] = Counter()
    lines: dict[Place, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _TABLE.match(line)) is not None:
            name = header[2]
            table = _names(name)
            if header[1] == "[[":
                table = (*table, seen[name])
                seen[name] += 1
            lines.setdefault(table, number)
        elif (key := _KEY.match(line)) is not None:
            lines.setdefault((*table, *_names(key[1])), number)
    wanted = tuple(place)
    while wanted:
        if wanted in lines:
            return lines[wanted]
        wanted = wanted[:-1]
    return None


def _names(dotted: str) -> Place:
    return tuple(part.strip().strip("\"'") for part in dotted.split("."))
