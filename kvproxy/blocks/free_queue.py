"""Idle blocks in the order in which they are given up.

`FreeBlockQueue` is vLLM v1's: a doubly linked list through the blocks themselves, so that a hit takes a block out of
the middle in constant time without an allocation. Other orders implement the same protocol (see `policies`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from kvproxy.blocks.block import Block


class FreeQueue(Protocol):
    """What the pool needs of an eviction order."""

    num_free: int

    def popleft_n(self, count: int) -> list[Block]:
        """Give up the first `count` blocks; the caller has checked that there are as many."""

    def remove_n(self, blocks: Sequence[Block]) -> None:
        """Take out blocks that were hit."""

    def append_n(self, blocks: Sequence[Block]) -> None:
        """Add idle cached blocks, given up last and in this order."""

    def prepend_n(self, blocks: Sequence[Block]) -> None:
        """Add blocks that cache nothing, given up first and in this order."""

    def __iter__(self) -> Iterator[Block]:
        """Blocks in eviction order."""


class FreeBlockQueue:
    """Least recently freed first, in a list linked through `Block.prev` and `Block.next`."""

    __slots__ = ("_head", "_tail", "num_free")

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        # Sentinels at both ends spare every operation a test for an empty list.
        self._head = Block(-1)
        self._tail = Block(-1)
        self._head.next = self._tail
        self._tail.prev = self._head
        self.num_free = 0
        self.append_n(list(blocks))

    def popleft_n(self, count: int) -> list[Block]:
        popped: list[Block] = []
        block = self._head.next
        for _ in range(count):
            assert block is not None
            popped.append(block)
            following = block.next
            block.prev = block.next = None
            block = following
        if block is None:
            raise RuntimeError(f"{count} blocks asked of {self.num_free} free ones")
        self._head.next = block
        block.prev = self._head
        self.num_free -= count
        return popped

    def remove_n(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            before, after = block.prev, block.next
            if before is None or after is None:
                raise RuntimeError(f"{block!r} is not in the free queue")
            before.next = after
            after.prev = before
            block.prev = block.next = None
        self.num_free -= len(blocks)

    def append_n(self, blocks: Sequence[Block]) -> None:
        last = self._tail.prev
        assert last is not None
        self._link(last, blocks, self._tail)

    def prepend_n(self, blocks: Sequence[Block]) -> None:
        first = self._head.next
        assert first is not None
        self._link(self._head, blocks, first)

    def _link(self, before: Block, blocks: Sequence[Block], after: Block) -> None:
        for block in blocks:
            block.prev = before
            before.next = block
            before = block
        before.next = after
        after.prev = before
        self.num_free += len(blocks)

    def __iter__(self) -> Iterator[Block]:
        block = self._head.next
        while block is not None and block is not self._tail:
            yield block
            block = block.next
