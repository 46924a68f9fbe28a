"""Priorities: idle blocks of a lower one all go before any of a higher one, each priority in its own order."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from kvproxy.blocks.block import Block
from kvproxy.blocks.free_queue import FreeBlockQueue, FreeQueue


class PriorityQueue:
    """A `FreeQueue` of queues, one for each priority that idle cached blocks have, and one for blocks that cache nothing.

    A request gives its priority to all blocks of its chain, so a parent never has less than its children.

    Args:
        make_level: an empty queue of the policy that orders blocks of equal priority.
        blocks: idle blocks to begin with.
    """

    def __init__(self, make_level: Callable[[], FreeQueue], blocks: Iterable[Block] = ()) -> None:
        self._make_level = make_level
        self._empty = FreeBlockQueue()
        self._levels: dict[int, FreeQueue] = {}
        self.num_free = 0
        self.append_n(list(blocks))

    def popleft_n(self, count: int) -> list[Block]:
        if count > self.num_free:
            raise RuntimeError(f"{count} blocks asked of {self.num_free} free ones")
        self.num_free -= count
        popped: list[Block] = []
        for level in self._in_order():
            popped += level.popleft_n(min(count - len(popped), level.num_free))
            if len(popped) == count:
                break
        return popped

    def remove_n(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            level = self._empty if block.hash is None else self._levels.get(block.priority)
            if level is None:
                raise RuntimeError(f"{block!r} is not in the free queue")
            level.remove_n([block])
        self.num_free -= len(blocks)

    def append_n(self, blocks: Sequence[Block]) -> None:
        self.num_free += len(blocks)
        if blocks and all(block.hash is not None and block.priority == blocks[0].priority for block in blocks):
            self._level(blocks[0].priority).append_n(blocks)
            return
        for block in blocks:
            (self._empty if block.hash is None else self._level(block.priority)).append_n([block])

    def prepend_n(self, blocks: Sequence[Block]) -> None:
        self._empty.prepend_n(blocks)
        self.num_free += len(blocks)

    def __iter__(self) -> Iterator[Block]:
        for level in self._in_order():
            yield from level

    def _level(self, priority: int) -> FreeQueue:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = self._make_level()
        return level

    def _in_order(self) -> list[FreeQueue]:
        return [self._empty, *(self._levels[priority] for priority in sorted(self._levels))]
