"""The cache's content as events, so that whoever begins to listen late can join without a gap."""

from dataclasses import dataclass

from kvproxy.blocks.block import Block
from kvproxy.blocks.events import BlockStored
from kvproxy.blocks.manager import KVCacheManager


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is cached, as if it had just been stored.

    Attributes:
        sequence: events that happened before; the next one of the live stream is number `sequence`, counted from 0.
        events: parents before children, one event for each physical copy of a block.
    """

    sequence: int
    events: tuple[BlockStored, ...]


def take_snapshot(manager: KVCacheManager) -> Snapshot:
    """Everything that is cached now.

    A consumer applies the events of the snapshot to an empty state, then those of the live stream from number `sequence`
    on. A block whose parent was evicted before it names a parent that the snapshot does not hold.

    Raises:
        ValueError: the manager keeps no tokens, or records no events.
    """
    pool = manager.pool
    if not pool.keep_tokens or not pool.record_events:
        raise ValueError("a snapshot needs a manager with keep_tokens and record_events")
    cached = [block for block in pool.blocks if block.hash is not None]
    # A chain's blocks can lie anywhere in the pool; the offset of a block's first token says how deep it is.
    cached.sort(key=lambda block: block.source[1] if block.source else 0)
    return Snapshot(pool.num_events, tuple(_stored(manager, block) for block in cached))


def _stored(manager: KVCacheManager, block: Block) -> BlockStored:
    assert block.hash is not None
    assert block.source is not None
    request, start = block.source
    group = manager.groups[block.group or 0]
    size = group.block_size
    return group.described(BlockStored.of(request, [block.hash], block.parent, start // size, size, block.group))
