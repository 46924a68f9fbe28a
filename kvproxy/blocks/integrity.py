"""Every invariant of the block cache, stated as a check."""

from collections import Counter
from collections.abc import Sequence

from kvproxy.blocks.groups import BlockGroup
from kvproxy.blocks.pool import BlockPool


def check_integrity(pool: BlockPool, groups: Sequence[BlockGroup], held: Counter[int] | None = None) -> None:
    """Raise AssertionError, naming the broken rule, unless pool and tables agree.

    Args:
        pool: the pool.
        groups: all groups whose tables hold its blocks.
        held: holders that are in no table (pins), by block id.
    """
    null = pool.null_block
    holders = Counter(held or ())
    for group in groups:
        for request_id, table in group.tables.items():
            holders.update(block.id for block in table if block is not null)
            assert group.num_cached[request_id] <= len(table), f"{request_id} has more cached blocks than blocks"
    free = list(pool.free_queue)
    assert len(free) == pool.num_free, f"the free queue holds {len(free)} blocks but counts {pool.num_free}"
    free_ids = {block.id for block in free}
    assert len(free_ids) == len(free), "a block is in the free queue twice"
    assert null.id not in free_ids, "the null block is in the free queue"
    assert null.hash is None, "the null block is hashed"
    for block in pool.blocks[1:]:
        assert block.ref_count == holders[block.id], f"{block!r} has {holders[block.id]} holders"
        assert (block.ref_count == 0) == (block.id in free_ids), f"{block!r} must be either held or free"
        if block.hash is not None:
            found = pool.cached.get(pool.key_of(block))
            assert found is block or (isinstance(found, list) and block in found), f"{block!r} is not in the map"
    mapped = 0
    for key, value in pool.cached.items():
        copies = value if isinstance(value, list) else [value]
        assert copies, f"the map keeps an empty list for {key!r}"
        mapped += len(copies)
        assert all(block.hash is not None and pool.key_of(block) == key for block in copies), (
            f"{key!r} misnames a block"
        )
    hashed = sum(1 for block in pool.blocks if block.hash is not None)
    assert mapped == hashed, f"the map names {mapped} blocks, {hashed} are hashed"
