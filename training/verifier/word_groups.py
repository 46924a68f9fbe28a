from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path(__file__).parent


def _read_groups() -> dict[str, tuple[str, ...]]:
    lines = (line.split(": ", 1) for line in (_FOLDER / "word_groups.txt").read_text().splitlines())
    return {name: tuple(members.split("|")) for name, members in lines}


def _read_synonyms() -> dict[str, str]:
    table: dict[str, str] = {}
    for pair in (_FOLDER / "synonyms.txt").read_text().split():
        one, other = (word.replace("_", " ") for word in pair.split("/"))
        table[one] = other
        table.setdefault(other, one)
    return table


GROUPS: Mapping[str, tuple[str, ...]] = _read_groups()
"""Groups of words by name, such as `city`. Exchanging two words of a group changes the answer."""

SYNONYMS: Mapping[str, str] = _read_synonyms()
"""A synonym of each word. Exchanging them does not change the answer."""
