from collections.abc import Callable, Iterable, Iterator, Sequence

from kvproxy.blocks.block import KVCacheBlock
from kvproxy.blocks.eviction.lru_queue import FreeKVCacheBlockQueue, FreeQueue


class PriorityQueue:
    """A `FreeQueue` that evicts blocks of lower priorities first. It has one queue (level) per priority.

    A block's priority is at least the priority of the next block in a chain, so a chain is evicted from its end.
    """

    def __init__(self, make_level: Callable[[], FreeQueue], blocks: Iterable[KVCacheBlock] = ()) -> None:
        self._make_level = make_level
        self._uncached = FreeKVCacheBlockQueue()
        self._levels: dict[int, FreeQueue] = {}
        self.num_free_blocks = 0
        self.append_n(list(blocks))

    def popleft_n(self, count: int) -> list[KVCacheBlock]:
        if count > self.num_free_blocks:
            raise RuntimeError(f"cannot take {count} blocks: {self.num_free_blocks} are free")
        self.num_free_blocks -= count
        popped: list[KVCacheBlock] = []
        for level in self._levels_in_order():
            popped += level.popleft_n(min(count - len(popped), level.num_free_blocks))
            if len(popped) == count:
                break
        return popped

    def remove_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        for block in blocks:
            level = self._uncached if block.hash is None else self._levels.get(block.priority)
            if level is None:
                raise RuntimeError(f"{block!r} is not in the free queue")
            level.remove_n([block])
        self.num_free_blocks -= len(blocks)

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.num_free_blocks += len(blocks)
        if blocks and all(block.hash is not None and block.priority == blocks[0].priority for block in blocks):
            self.level(blocks[0].priority).append_n(blocks)
            return
        for block in blocks:
            (self._uncached if block.hash is None else self.level(block.priority)).append_n([block])

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._uncached.prepend_n(blocks)
        self.num_free_blocks += len(blocks)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        for level in self._levels_in_order():
            yield from level

    def level(self, priority: int) -> FreeQueue:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = self._make_level()
        return level

    def _levels_in_order(self) -> list[FreeQueue]:
        return [self._uncached, *(self._levels[priority] for priority in sorted(self._levels))]
