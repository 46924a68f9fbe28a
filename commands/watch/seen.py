"""A part as its tab shows it."""

from typing import TYPE_CHECKING

from kvproxy.commands.watch.matches import matches
from kvproxy.commands.watch.panels import answered, savings, stacked, variants
from kvproxy.commands.watch.parts import VARIANTS, Part
from kvproxy.commands.watch.pool import pool
from kvproxy.commands.watch.stored import stored
from kvproxy.commands.watch.upstreams import upstreams

if TYPE_CHECKING:
    from rich.console import Group


def drawn_part(part: Part, words: str, width: int) -> "Group":
    """The tab's ways with the one that is seen in brackets, and what was found, or why nothing was.

    Args:
        part: what was found.
        words: what the rows must hold.
        width: cells that there are.
    """
    wanted = part.wanted
    ways = VARIANTS.get(wanted.tab)
    heading = [] if ways is None else [f"{variants(ways, wanted.by)}   (b: next)", ""]
    return stacked(*heading, part.problem or "" if part.found is None else _drawn(part, words, width))


def _drawn(part: Part, words: str, width: int) -> "Group":
    found, wanted = part.found or {}, part.wanted
    match wanted.tab:
        case "upstreams":
            return upstreams(found, width)
        case "saved":
            return savings(found, wanted.by, width)
        case "matches":
            return matches(found["rows"], words, width)
        case "stored":
            return stored(found, wanted.by, wanted.words, width)
        case "pool":
            return pool(found, wanted.by, width)
        case _:
            return answered(found, width)
