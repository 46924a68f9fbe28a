"""The pool: all blocks, the map from digest to block, and the queue of idle ones.

The pool knows nothing of requests. A group (see `groups`) turns tables of blocks into calls on it.
"""

from collections.abc import Callable, Iterable, Sequence

from kvproxy.blocks.block import Block
from kvproxy.blocks.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from kvproxy.blocks.free_queue import FreeBlockQueue, FreeQueue
from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.residency import Residency

Key = tuple[int, bytes] | bytes
"""What a block is cached under: its digest, with the group's number where there are several groups."""


class BlockPool:
    """Physical blocks 0 to `num_blocks - 1`; block 0 is the null block, which is never freed, hashed or counted.

    Args:
        num_blocks: blocks in the pool, the null block included.
        make_queue: builds the queue of idle blocks; the default is exact LRU.
        record_events: collect KV events for `take_events`.
        keep_tokens: remember each cached block's tokens, for inspection.
        residency: notes how long cached blocks stay.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        make_queue: Callable[[Iterable[Block]], FreeQueue] = FreeBlockQueue,
        record_events: bool = False,
        keep_tokens: bool = False,
        residency: Residency | None = None,
    ) -> None:
        if num_blocks < 2:
            raise ValueError(
                f"a pool of {num_blocks} blocks holds nothing: block 0 is the null block, so use 2 or more"
            )
        self.num_blocks = num_blocks
        self.blocks = [Block(index) for index in range(num_blocks)]
        self.null_block = self.blocks[0]
        self.null_block.ref_count = 1
        self._make_queue = make_queue
        self.free_queue = make_queue(self.blocks[1:])
        self.cached: dict[Key, Block | list[Block]] = {}
        self.keep_tokens = keep_tokens
        self.record_events = record_events
        self.residency = residency
        self.events: list[KVEvent] = []
        self._taken = 0
        self.clock = 0
        self.stored = 0
        self.evictions = 0
        self.cleared = 0

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now, cached idle ones included."""
        return self.free_queue.num_free

    @property
    def usage(self) -> float:
        """Share of the pool that live requests hold, from 0 to 1; the null block does not count."""
        return 1.0 - self.num_free / (self.num_blocks - 1)

    def find(self, key: Key) -> Block | None:
        """The oldest block cached under `key`."""
        block = self.cached.get(key)
        return block[0] if type(block) is list else block  # type: ignore[return-value]

    def touch(self, blocks: Sequence[Block], priority: int = 0) -> None:
        """Add one holder to each block; idle ones leave the free queue, and none has less than the holder's priority."""
        clock = self.clock = self.clock + 1
        self.free_queue.remove_n([block for block in blocks if block.ref_count == 0])
        for block in blocks:
            block.ref_count += 1
            block.last_accessed = clock
        if priority:
            for block in blocks:
                block.priority = max(block.priority, priority)
        if self.residency is not None:
            self.residency.touched(blocks)

    def allocate(self, count: int) -> list[Block]:
        """Take `count` idle blocks, forgetting what they cached.

        Raises:
            RuntimeError: fewer are free; callers check `num_free` first.
        """
        if count > self.free_queue.num_free:
            raise RuntimeError(f"{count} blocks asked of {self.free_queue.num_free} free ones")
        blocks = self.free_queue.popleft_n(count)
        clock = self.clock = self.clock + 1
        self.forget([block for block in blocks if block.hash is not None])
        for block in blocks:
            block.ref_count = 1
            block.last_accessed = clock
        return blocks

    def release(self, blocks: Sequence[Block]) -> None:
        """Drop one holder of each block, in the order in which they should be given up.

        Blocks that become idle go to the tail when they are cached and to the head when they are not: an empty block is
        never kept at the price of a cached one.
        """
        empty: list[Block] = []
        cached: list[Block] = []
        for block in blocks:
            block.ref_count -= 1
            if block.ref_count == 0:
                (empty if block.hash is None else cached).append(block)
        if empty:
            self.free_queue.prepend_n(empty)
        if cached:
            self.free_queue.append_n(cached)
            if self.residency is not None:
                self.residency.released(cached)

    def store(
        self,
        request: CacheRequest,
        hashes: Sequence[bytes],
        blocks: Sequence[Block],
        first: int,
        block_size: int,
        group: int | None = None,
    ) -> None:
        """Cache full blocks: `blocks[i]` holds block `first + i` of the request, named `hashes[first + i]`.

        Null blocks are passed over.
        """
        setdefault, null = self.cached.setdefault, self.null_block
        parent = hashes[first - 1] if first else None
        kept = request if self.keep_tokens else None
        priority = request.priority
        for index, (block, digest) in enumerate(zip(blocks, hashes[first : first + len(blocks)], strict=True), first):
            if block.hash is None and block.ref_count and block is not null:
                block.hash = digest
                block.parent = parent
                block.group = group
                block.priority = priority
                key: Key = digest if group is None else (group, digest)
                other = setdefault(key, block)
                if other is not block:
                    self._add_copy(key, other, block)
                if kept is not None:
                    block.source = (kept, index * block_size)
            parent = digest
        self.stored += len(blocks) - blocks.count(self.null_block)
        if self.residency is not None:
            self.residency.stored(blocks)
        if self.record_events:
            self._record_store(request, hashes, blocks, first, block_size, group)

    def _add_copy(self, key: Key, other: Block | list[Block], block: Block) -> None:
        if type(other) is list:
            other.append(block)
        else:
            self.cached[key] = [other, block]  # type: ignore[list-item]

    def _record_store(
        self,
        request: CacheRequest,
        hashes: Sequence[bytes],
        blocks: Sequence[Block],
        first: int,
        block_size: int,
        group: int | None,
    ) -> None:
        runs: list[list[int]] = []
        for index, block in enumerate(blocks, first):
            if block is self.null_block:
                continue
            if runs and runs[-1][-1] == index - 1:
                runs[-1].append(index)
            else:
                runs.append([index])
        for run in runs:
            start, end = run[0], run[-1] + 1
            parent = hashes[start - 1] if start else None
            self.events.append(BlockStored.of(request, hashes[start:end], parent, start, block_size, group))

    def key_of(self, block: Block) -> Key:
        """What a cached block is found under."""
        assert block.hash is not None
        return block.hash if block.group is None else (block.group, block.hash)

    def forget(self, blocks: Sequence[Block]) -> None:
        """Take cached blocks out of the map; their content may then be overwritten."""
        cached = self.cached
        if self.residency is not None:
            self.residency.evicted(blocks)
        if self.record_events:
            self.events += [BlockRemoved((block.hash,), block.group) for block in blocks if block.hash is not None]
        for block in blocks:
            key = self.key_of(block) if block.group is not None else block.hash
            copies = cached.pop(key)  # type: ignore[arg-type]
            if type(copies) is list:
                copies.remove(block)
                if copies:
                    cached[key] = copies  # type: ignore[index]
            block.hash = block.parent = block.source = None
        self.evictions += len(blocks)

    def reset(self) -> bool:
        """Forget everything cached. Refused (False) while any request holds a block."""
        if self.num_free != self.num_blocks - 1:
            return False
        order = list(self.free_queue)
        for block in self.blocks:
            block.hash = block.parent = block.source = None
        # A policy remembers digests that mean nothing now; LRU's order stays as it was.
        self.free_queue = self._make_queue(order)
        self.cached.clear()
        self.cleared += 1
        if self.residency is not None:
            self.residency.cleared()
        if self.record_events:
            self.events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[KVEvent]:
        """Events since the last call."""
        events, self.events = self.events, []
        self._taken += len(events)
        return events

    @property
    def num_events(self) -> int:
        """Events recorded since the start, taken or not."""
        return self._taken + len(self.events)
