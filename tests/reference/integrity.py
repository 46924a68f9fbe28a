"""The invariants of the block cache."""

from collections import Counter

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import Pins


def check_integrity(manager: KVCacheManager, pins: Pins | None = None) -> None:
    """Raise AssertionError if the pool, the block tables, the pins, and the free queue disagree."""
    pool = manager.pool
    null = pool.null_block
    holders = Counter(block for pin in pins.list() for block in pin.blocks) if pins else Counter[int]()
    for group in manager.groups:
        for request_id, table in group.tables.items():
            holders.update(block.id for block in table if block is not null)
            assert group.num_cached[request_id] <= len(table), f"{request_id} has more cached blocks than blocks"
    free = list(pool.free_queue)
    assert len(free) == pool.num_free_blocks, f"the free queue has {len(free)} blocks, not {pool.num_free_blocks}"
    free_ids = {block.id for block in free}
    assert len(free_ids) == len(free), "a block is in the free queue twice"
    assert null.id not in free_ids, "the null block is in the free queue"
    assert null.hash is None, "the null block has a hash"
    for block in pool.blocks[1:]:
        assert block.ref_count == holders[block.id], f"{block!r} has {holders[block.id]} holders"
        assert (block.ref_count == 0) == (block.id in free_ids), f"{block!r} must be either in use or free"
        if block.hash is not None:
            found = pool.cached_blocks.get(pool.key_of(block))
            assert found is block or (isinstance(found, list) and block in found), f"{block!r} is not in the cache map"
    num_mapped = 0
    for key, value in pool.cached_blocks.items():
        copies = value if isinstance(value, list) else [value]
        assert copies, f"the cache map has an empty list for {key!r}"
        num_mapped += len(copies)
        assert all(block.hash is not None and pool.key_of(block) == key for block in copies), f"wrong block at {key!r}"
    num_hashed = sum(1 for block in pool.blocks if block.hash is not None)
    assert num_mapped == num_hashed, f"the cache map has {num_mapped} blocks, {num_hashed} have a hash"
