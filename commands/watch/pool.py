"""The prefix cache: its figures, its blocks as a picture, its chains, and its order of eviction."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvproxy.commands.blocks_picture import SHAPES, group_lines
from kvproxy.commands.table import drawn, text
from kvproxy.commands.units import duration, percent, size
from kvproxy.commands.watch.panels import stacked
from kvproxy.commands.watch.parts import CHAINS, MOST, ORDER

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

_STATES = {"u": "used", "p": "pinned", "c": "cached", "f": "free", "0": "null"}
_AGES = "█▇▆▅▄▂"
"""From what was used last to what was used longest ago, in equal shares."""
_TENANTS = "ABCDEFGH"
_OTHERS, _NOTHING = "+", "·"
_LINES = 16


@dataclass(frozen=True, slots=True)
class Painting:
    """A picture of blocks.

    Attributes:
        of: for each block, the place of its meaning in the legend.
        legend: shapes, and what they mean; what matters most stands first.
    """

    of: list[int]
    legend: list[tuple[str, str]]


def pool(found: Mapping[str, Any], by: str, width: int) -> "Group":
    """The pool's figures, and one look at its blocks.

    Args:
        found: see `parts.find`.
        by: what the blocks are told apart by, or another list.
        width: cells that there are.
    """
    parts: list[RenderableType] = [*_figures(found["stats"]), ""]
    if by == CHAINS:
        parts += _chains(found["rows"], found["total"], width)
    elif by == ORDER:
        parts += _order(found["map"], width)
    else:
        parts += _picture(painted(found["map"], by), width)
    return stacked(*parts)


def _figures(stats: Mapping[str, Any]) -> list[str]:
    """What is known of it, in a few lines."""
    counts = (
        ("blocks", stats["num_blocks"]),
        ("tokens a block", stats["block_size"]),
        ("used", stats["used"]),
        ("pinned", stats["pinned"]),
        ("cached", stats["cached"]),
        ("distinct", stats["distinct"]),
        ("evictions", stats["evictions"]),
    )
    known = [f"{value:,} {name}" for name, value in counts if value is not None]
    if stats["used_bytes"] is not None:
        known.append(f"{size(stats['used_bytes'])} used")
    if stats["hit_rate"] is not None:
        known.append(f"{percent(stats['hit_rate'])} of {stats['queries']:,} prompt tokens reused")
    lines = [", ".join(known)] if known else []
    residency = stats["residency"] or {}
    if residency.get("evicted"):
        lines.append(
            f"evicted after {duration(residency['lifetime'])} in the cache and {duration(residency['idle'])} without use"
            f" (medians), {percent(residency['never_hit'])} of them never reused"
        )
    return lines + group_lines(stats["groups"])


def painted(pool: Mapping[str, Any], by: str) -> Painting:
    """The blocks of `/admin/blocks/map`, told apart by their state, by when they were used last, or by whose they are.

    Where an engine does not tell that, by their state.
    """
    if by == "age" and pool["used"] is not None:
        return _by_age(pool["used"])
    if by == "tenant" and pool["tenant"] is not None:
        return _by_tenant(pool["tenant"], pool["tenants"])
    letters = list(_STATES)
    return Painting([letters.index(letter) for letter in pool["states"]], [(SHAPES[n], n) for n in _STATES.values()])


def _by_age(used: Sequence[int]) -> Painting:
    order = sorted((each for each in used if each > 0), reverse=True)
    bounds = [order[len(order) * part // len(_AGES)] for part in range(1, len(_AGES))] if order else []
    names = ["used last", *("" for _ in _AGES[2:]), "used longest ago"]
    return Painting(
        [sum(each <= bound for bound in bounds) if each > 0 else len(_AGES) for each in used],
        [*zip(_AGES, names, strict=True), (_NOTHING, "never used")],
    )


def _by_tenant(tenant: Sequence[int], tenants: Sequence[str]) -> Painting:
    largest = [place for place, _ in Counter(each for each in tenant if each >= 0).most_common(len(_TENANTS))]
    rank = {place: at for at, place in enumerate(largest)} | {-1: len(largest) + 1}
    legend = [(shape, tenants[place]) for shape, place in zip(_TENANTS, largest, strict=False)]
    return Painting(
        [rank.get(each, len(largest)) for each in tenant], [*legend, (_OTHERS, "others"), (_NOTHING, "none")]
    )


def _picture(painting: Painting, width: int) -> list[str]:
    counts = Counter(painting.of)
    # A cell is a run of blocks, and shows what matters most of them, where there are more than fit.
    per_cell = max(1, -(-len(painting.of) // (width * _LINES)))
    shapes = [
        painting.legend[min(painting.of[start : start + per_cell])][0] for start in range(0, len(painting.of), per_cell)
    ]
    lines = ["".join(shapes[start : start + width]) for start in range(0, len(shapes), width)]
    told = "   ".join(
        f"{shape} {name} {counts[place]:,}".replace("  ", " ")
        for place, (shape, name) in enumerate(painting.legend)
        if counts[place]
    )
    cell = "one block a cell" if per_cell == 1 else f"{per_cell:,} blocks a cell"
    return [*lines, "", f"{told}   ({cell})"]


def _chains(rows: Sequence[Mapping[str, Any]], total: int, width: int) -> "list[RenderableType]":
    if not rows:
        return ["No chain is cached."]
    return [
        f"{len(rows):,} of {total:,} beginnings of chains, the largest first",
        drawn(
            ("blocks#", "below#", "ways#", "in use#", text("begins")),
            ((row["blocks"], row["below"], row["leaves"], row["held"], repr(row["text"])) for row in rows),
            width,
        ),
    ]


def _order(pool: Mapping[str, Any], width: int) -> "list[RenderableType]":
    queue = pool["queue"]
    if queue is None:
        return ["Engines do not publish their order of eviction."]
    if not queue:
        return ["Requests or pins hold every block."]
    rows = (
        (place + 1, str(block), _STATES[pool["states"][block]], pool["used"][block], _tenant(pool, block))
        for place, block in enumerate(queue[:MOST])
    )
    return [
        f"{min(MOST, len(queue)):,} of {len(queue):,} idle blocks, the next to be evicted first",
        drawn(("next#", "block#", "state", "last use#", text("tenant")), rows, width),
    ]


def _tenant(pool: Mapping[str, Any], block: int) -> str | None:
    place = pool["tenant"][block]
    return pool["tenants"][place] if place >= 0 else None
