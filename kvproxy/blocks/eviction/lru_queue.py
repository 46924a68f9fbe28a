"""Queues of free blocks in eviction order. `FreeKVCacheBlockQueue` behaves like vLLM v1's class."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from kvproxy.blocks.block import KVCacheBlock


class FreeQueue(Protocol):
    num_free_blocks: int

    def popleft_n(self, count: int) -> list[KVCacheBlock]:
        """Remove and return the next blocks to evict; raises RuntimeError if too few are free."""

    def remove_n(self, blocks: Sequence[KVCacheBlock]) -> None: ...

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add cached blocks as the most recently used ones, in the order of `blocks`."""

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Add uncached blocks, which are allocated next, in the order of `blocks`."""

    def __iter__(self) -> Iterator[KVCacheBlock]: ...


class FreeKVCacheBlockQueue:
    """LRU order in a linked list, from which a block can be removed in constant time."""

    __slots__ = ("_head", "_tail", "num_free_blocks")

    def __init__(self, blocks: Iterable[KVCacheBlock] = ()) -> None:
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next = self._tail
        self._tail.prev = self._head
        self.num_free_blocks = 0
        self.append_n(list(blocks))

    def popleft_n(self, count: int) -> list[KVCacheBlock]:
        popped: list[KVCacheBlock] = []
        block = self._head.next
        for _ in range(count):
            assert block is not None
            popped.append(block)
            following = block.next
            block.prev = block.next = None
            block = following
        if block is None:
            raise RuntimeError(f"cannot take {count} blocks: {self.num_free_blocks} are free")
        self._head.next = block
        block.prev = self._head
        self.num_free_blocks -= count
        return popped

    def remove_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        for block in blocks:
            before, after = block.prev, block.next
            if before is None or after is None:
                raise RuntimeError(f"{block!r} is not in the free queue")
            before.next = after
            after.prev = before
            block.prev = block.next = None
        self.num_free_blocks -= len(blocks)

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        last = self._tail.prev
        assert last is not None
        self._link(last, blocks, self._tail)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        first = self._head.next
        assert first is not None
        self._link(self._head, blocks, first)

    def _link(self, before: KVCacheBlock, blocks: Sequence[KVCacheBlock], after: KVCacheBlock) -> None:
        for block in blocks:
            block.prev = before
            before.next = block
            before = block
        before.next = after
        after.prev = before
        self.num_free_blocks += len(blocks)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._head.next
        while block is not None and block is not self._tail:
            yield block
            block = block.next
