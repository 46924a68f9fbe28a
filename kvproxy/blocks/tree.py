"""Cached chains as a tree: chains that share a beginning part where the first block differs."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.rows import BlockRow

_MOST_NAMES = 64


@dataclass(frozen=True, slots=True)
class Link:
    """One cached block as a part of chains: how `show` finds it, its digest, that of the block before it, whether it is held."""

    name: str
    hash: str
    parent: str | None
    held: bool = False


@dataclass(frozen=True, slots=True)
class Branch:
    """Blocks that follow each other without a fork.

    Attributes:
        end: digest of the last of them: what it is the parent of comes next.
        blocks: how many they are.
        names: of the first of them.
        below: blocks that follow, on all ways.
        leaves: how many chains there are from here.
        held: blocks of all these that requests or pins hold.
        text: what the first block says.
    """

    end: str
    blocks: int
    names: tuple[str, ...]
    below: int
    leaves: int
    held: int
    text: str = ""


def named_blocks(manager: KVCacheManager) -> list[tuple[int, bytes, bytes | None, int]]:
    """Number, digest, the parent's digest and references of each cached block; of a hybrid model, those of its main group.

    The engine waits for this, so what `links_of_blocks` makes of it is made elsewhere.
    """
    number = manager.main.number
    return [
        (block.id, block.hash, block.parent, block.ref_count)
        for block in manager.pool.blocks
        if block.hash is not None and block.group == number
    ]


def links_of_blocks(blocks: Iterable[tuple[int, bytes, bytes | None, int]]) -> list[Link]:
    """The blocks of the embedded engine."""
    return [
        Link(str(id), digest.hex(), None if parent is None else parent.hex(), held > 0)
        for id, digest, parent, held in blocks
    ]


def links_of_rows(rows: Iterable[BlockRow]) -> list[Link]:
    """Mirrored blocks; those of one digest are one link."""
    named = {row.hash: row for row in rows if row.hash is not None}
    return [Link(hash, hash, row.parent) for hash, row in named.items()]


def branches(links: Iterable[Link], parent: str | None, start: int, limit: int) -> tuple[list[Branch], int]:
    """The ways on from a block, the largest first, and how many there are.

    Args:
        parent: digest of the block; None for the beginnings of all chains.
        start, limit: which of the ways.
    """
    children: dict[str | None, list[Link]] = {}
    known = {link.hash: link for link in links}
    for link in known.values():
        # A chain whose beginning was given up begins where it is still known.
        children.setdefault(link.parent if link.parent in known else None, []).append(link)
    found = sorted((_branch(children, link) for link in children.get(parent, [])), key=_size, reverse=True)
    return found[start : start + limit], len(found)


def _size(branch: Branch) -> int:
    return branch.blocks + branch.below


def _branch(children: dict[str | None, list[Link]], link: Link) -> Branch:
    run = [link]
    while len(following := children.get(run[-1].hash, [])) == 1:
        run.append(following[0])
    below = leaves = held = 0
    left = list(children.get(run[-1].hash, []))
    while left:
        each = left.pop()
        further = children.get(each.hash, [])
        below, leaves, held = below + 1, leaves + (not further), held + each.held
        left.extend(further)
    held += sum(each.held for each in run)
    return Branch(run[-1].hash, len(run), tuple(each.name for each in run[:_MOST_NAMES]), below, leaves or 1, held)
