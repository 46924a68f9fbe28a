"""A pool in columns, for pictures: much smaller than a list of rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pool_rows import block_state
from kvproxy.blocks.row_types import BlockRow, BlockState

_LETTERS: dict[BlockState, str] = {"null": "0", "used": "u", "pinned": "p", "cached": "c", "free": "f"}
_NAME_DIGITS = 16


@dataclass(frozen=True, slots=True)
class PoolMap:
    """Columns with one item for each block. A column is None if the cache does not provide it.

    Attributes:
        names: names of the blocks for `show`; None if a block's name is its index.
        states: a letter for each block: `u` used, `p` pinned, `c` cached, `f` free, `0` the null block.
        tenant: index in `tenants`; -1 if the block has none.
        queue: indexes of the idle blocks in eviction order.
    """

    names: list[str] | None
    states: str
    refs: list[int] | None
    used: list[int] | None
    tenants: list[str] | None
    tenant: list[int] | None
    queue: list[int] | None


def map_pool(manager: KVCacheManager) -> PoolMap:
    """Return the columns of a pool. This must be fast, because it blocks the engine's thread."""
    blocks, null = manager.pool.blocks, manager.pool.null_block
    in_tables = {block.id for group in manager.groups for table in group.tables.values() for block in table}
    tenants: dict[str, int] = {}
    tenant = [-1] * len(blocks)
    for block in blocks:
        if block.source is not None:
            tenant[block.id] = tenants.setdefault(block.source[0].salt or "", len(tenants))
    return PoolMap(
        None,
        "".join(_LETTERS[block_state(block, null, in_tables)] for block in blocks),
        [block.ref_count for block in blocks],
        [block.last_accessed for block in blocks],
        list(tenants),
        tenant,
        [block.id for block in manager.pool.free_queue],
    )


def map_rows(rows: Sequence[BlockRow]) -> PoolMap:
    names = [(row.hash or "")[:_NAME_DIGITS] for row in rows]
    return PoolMap(names, "".join(_LETTERS[row.state] for row in rows), None, None, None, None, None)
