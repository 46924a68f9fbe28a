"""All blocks of the pool: allocation, cached hashes, and eviction."""

from collections.abc import Callable, Iterable, Sequence

from kvproxy.blocks.block import KVCacheBlock
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.events import AllBlocksCleared, BlockRemoved, KVEvent
from kvproxy.blocks.eviction.free_queues import FreeKVCacheBlockQueue, FreeQueue
from kvproxy.blocks.residency import ResidencyTracker

BlockKey = tuple[int, bytes] | bytes
"""Key of a cached block: its hash, or (group index, hash) if the model has several KV cache groups."""


class BlockPool:
    """All physical blocks. Block 0 is vLLM's null block, a placeholder that is never allocated or cached."""

    def __init__(
        self,
        num_blocks: int,
        *,
        make_queue: Callable[[Iterable[KVCacheBlock]], FreeQueue] = FreeKVCacheBlockQueue,
        record_events: bool = False,
        residency: ResidencyTracker | None = None,
    ) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks}: use 2 or more, because block 0 is the null block")
        self.num_blocks = num_blocks
        self.blocks = [KVCacheBlock(index) for index in range(num_blocks)]
        self.null_block = self.blocks[0]
        self.null_block.ref_count = 1
        self._make_queue = make_queue
        self.free_queue = make_queue(self.blocks[1:])
        self.cached_blocks: dict[BlockKey, KVCacheBlock | list[KVCacheBlock]] = {}
        self.record_events = record_events
        self.residency = residency
        self.events: list[KVEvent] = []
        self._clock = 0
        self.num_evictions = 0

    @property
    def num_free_blocks(self) -> int:
        return self.free_queue.num_free_blocks

    def get_cached_block(self, key: BlockKey) -> KVCacheBlock | None:
        block = self.cached_blocks.get(key)
        return block[0] if type(block) is list else block  # type: ignore[return-value]

    def touch(self, blocks: Sequence[KVCacheBlock], priority: int = 0) -> None:
        """Add a reference to each block, so that it is not evicted, and raise its priority to at least `priority`."""
        clock = self._clock = self._clock + 1
        self.free_queue.remove_blocks([block for block in blocks if block.ref_count == 0])
        for block in blocks:
            block.ref_count += 1
            block.last_accessed = clock
        if priority:
            for block in blocks:
                block.priority = max(block.priority, priority)
        if self.residency is not None:
            self.residency.on_hit(blocks)

    def get_new_blocks(self, count: int, request: CacheRequest | None = None) -> list[KVCacheBlock]:
        """Allocate free blocks to a request, and evict their cached content. Raises RuntimeError if too few blocks are free."""
        if count > self.num_free_blocks:
            raise RuntimeError(f"cannot allocate {count} blocks: {self.num_free_blocks} are free")
        blocks = self.free_queue.popleft_n(count)
        clock = self._clock = self._clock + 1
        self.evict_blocks([block for block in blocks if block.hash is not None], request)
        for block in blocks:
            block.ref_count = 1
            block.last_accessed = clock
        return blocks

    def free_blocks(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Remove a reference from each block. Blocks without references join the free queue, in the order of `blocks`."""
        uncached: list[KVCacheBlock] = []
        cached: list[KVCacheBlock] = []
        for block in blocks:
            block.ref_count -= 1
            if block.ref_count == 0:
                (uncached if block.hash is None else cached).append(block)
        if uncached:
            self.free_queue.prepend_n(uncached)
        if cached:
            self.free_queue.append_n(cached)
            if self.residency is not None:
                self.residency.on_freed(cached)

    def cache_full_blocks(
        self,
        request: CacheRequest,
        hashes: Sequence[bytes],
        blocks: Sequence[KVCacheBlock],
        first: int,
        block_size: int,
        group: int | None = None,
    ) -> None:
        """Cache consecutive full blocks of a request; skip null blocks and blocks that are cached already.

        `hashes` has the hash of each full block of the request; `blocks[0]` is the request's block with index `first`.
        """
        setdefault, null = self.cached_blocks.setdefault, self.null_block
        parent = hashes[first - 1] if first else None
        priority = request.priority
        for index, (block, digest) in enumerate(zip(blocks, hashes[first : first + len(blocks)], strict=True), first):
            if block.hash is None and block.ref_count and block is not null:
                block.hash = digest
                block.parent = parent
                block.group = group
                block.priority = priority
                key: BlockKey = digest if group is None else (group, digest)
                other = setdefault(key, block)
                if other is not block:
                    copies = other if type(other) is list else [other]
                    self.cached_blocks[key] = [*copies, block]
                block.source = (request, index * block_size)
            parent = digest
        if self.residency is not None:
            self.residency.on_stored(blocks)

    def key_of(self, block: KVCacheBlock) -> BlockKey:
        assert block.hash is not None
        return block.hash if block.group is None else (block.group, block.hash)

    def evict_blocks(self, blocks: Sequence[KVCacheBlock], request: CacheRequest | None = None) -> None:
        """Remove blocks from the cache; `request` takes them. A block in use stays in the block tables of its requests."""
        cached = self.cached_blocks
        if self.residency is not None:
            self.residency.on_evicted(blocks, request)
        if self.record_events:
            self.events += [BlockRemoved((block.hash,), block.group or 0) for block in blocks if block.hash is not None]
        for block in blocks:
            key = self.key_of(block)
            copies = cached.pop(key)
            if type(copies) is list:
                copies.remove(block)
                if copies:
                    cached[key] = copies
            block.hash = block.parent = block.source = None
        self.num_evictions += len(blocks)

    def reset_prefix_cache(self) -> bool:
        if self.num_free_blocks != self.num_blocks - 1:
            return False
        order = list(self.free_queue)
        for block in self.blocks:
            block.hash = block.parent = block.source = None
        # Eviction policies keep statistics by hash: start a new queue in the old order.
        self.free_queue = self._make_queue(order)
        self.cached_blocks.clear()
        if self.residency is not None:
            self.residency.on_reset()
        if self.record_events:
            self.events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[KVEvent]:
        events, self.events = self.events, []
        return events
