"""A pool in columns, for pictures: a row for each of its blocks would be megabytes of names."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.rows import BlockRow, BlockState

_LETTERS: dict[BlockState, str] = {"null": "0", "used": "u", "pinned": "p", "cached": "c", "free": "f"}
_NAME = 16
"""Digits of a hash by which a mirrored block is named."""


@dataclass(frozen=True, slots=True)
class PoolMap:
    """Every block of a pool, each column in the same order. None is what that cache cannot tell.

    Attributes:
        names: how `show` finds a block; None where that is its place in the columns.
        states: a letter for each block: `0` null, `u` used, `p` pinned, `c` cached, `f` free.
        refs: how many hold it.
        used: ordinal of its last use, 0 where it was never used.
        tenants: whose blocks there are.
        tenant: the place of a block's tenant among them; -1 where it has none.
        queue: places of the idle blocks, the next to be evicted first.
    """

    names: list[str] | None
    states: str
    refs: list[int] | None
    used: list[int] | None
    tenants: list[str] | None
    tenant: list[int] | None
    queue: list[int] | None


def map_pool(manager: KVCacheManager) -> PoolMap:
    """The embedded engine's pool. It is made between two steps of the engine, so it does little for each block."""
    blocks, null = manager.pool.blocks, manager.pool.null_block
    held = {block.id for group in manager.groups for table in group.tables.values() for block in table}
    states = [_LETTERS["free" if block.hash is None else "cached"] for block in blocks]
    places: dict[str, int] = {}
    tenant = [-1] * len(blocks)
    for block in blocks:
        if block.ref_count:
            states[block.id] = _LETTERS["used" if block.id in held else "pinned"]
        if block.source is not None:
            salt = block.source[0].salt or ""
            tenant[block.id] = places.setdefault(salt, len(places))
    states[null.id] = _LETTERS["null"]
    return PoolMap(
        None,
        "".join(states),
        [block.ref_count for block in blocks],
        [block.last_accessed for block in blocks],
        list(places),
        tenant,
        [block.id for block in manager.pool.free_queue],
    )


def map_rows(rows: Sequence[BlockRow]) -> PoolMap:
    """Blocks that others hold, as far as they are known."""
    return PoolMap(
        names=[(row.hash or "")[:_NAME] for row in rows],
        states="".join(_LETTERS[row.state] for row in rows),
        refs=None,
        used=None,
        tenants=None,
        tenant=None,
        queue=None,
    )
