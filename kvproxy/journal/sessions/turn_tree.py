"""Orders the turns of a session as a tree."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvproxy.journal.sessions.session_reader import Turn


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A turn and its indentation in the tree of a session; see `turn_tree`.

    `before` and `after` quote the words of its first change; None if they are not stored, or not wanted. `later_changes` are the
    other regions (see `Regions`) that changed since its parent.
    """

    depth: int
    turn: Turn
    before: str | None = None
    after: str | None = None
    later_changes: Sequence[str] = ()


def turn_tree(turns: Sequence[Turn]) -> list[TreeRow]:
    """Order turns as a tree. Of several branches, the one with the latest turn comes last, and is not indented.

    A request that warmed a cache follows the turn that it repeated.
    """
    numbers = {turn.number for turn in turns}
    children: dict[int | None, list[Turn]] = {}
    repeatable: dict[tuple[int, int | None], int] = {}
    for turn in turns:
        place = (turn.session, turn.parent)
        parent = turn.parent if turn.parent in numbers else None
        if turn.is_warming:
            parent = repeatable.get(place, parent)
        else:
            repeatable[place] = turn.number
        children.setdefault(parent, []).append(turn)
    latest: dict[int, int] = {}
    for turn in sorted(turns, key=lambda turn: -turn.number):
        latest[turn.number] = max([turn.number, *(latest[child.number] for child in children.get(turn.number, ()))])
    rows = []
    waiting = [(0, turn) for turn in reversed(children.get(None, []))]
    while waiting:
        depth, turn = waiting.pop()
        rows.append(TreeRow(depth, turn))
        following = children.get(turn.number, [])
        own = [child for child in following if child.session == turn.session and not child.is_warming]
        main = max(own, key=lambda child: latest[child.number], default=None)
        waiting += [(depth, main)] if main is not None else []
        waiting += [(depth + 1, child) for child in reversed(following) if child is not main]
    return rows
