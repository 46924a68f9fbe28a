"""Groups whose attention does not reach back to the first token."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from kvproxy.blocks.block import Block
from kvproxy.blocks.groups import BlockGroup, GroupSpec
from kvproxy.blocks.pool import BlockPool
from kvproxy.blocks.request import CacheRequest

T = TypeVar("T")


def blocks_in_window(reach: int, block_size: int) -> int:
    """Blocks that the next token attends to before its own, at a block's end."""
    return -(-(reach - 1) // block_size)


def window_hit(find: Callable[[int], T | None], num_blocks: int, needed: int, null: T) -> list[T]:
    """The longest prefix whose last window is cached.

    Args:
        find: the cached block at a place of the chain.
        num_blocks: places to look at.
        needed: blocks in a window.
        null: stands for the blocks before the window, which nothing attends to.
    """
    found = [null] * num_blocks
    if needed == 0:
        return found
    run = 0
    for index in range(num_blocks - 1, -1, -1):
        block = find(index)
        if block is None:
            run = 0
            continue
        if run == 0:
            del found[index + 1 :]
        found[index] = block
        run += 1
        if run >= needed:
            found[:index] = [null] * index
            return found
    # No full window: what remains must then reach back to the very first token.
    return found[:run]


class SlidingWindowGroup(BlockGroup):
    """Each token attends to itself and the `reach - 1` tokens before it."""

    def longest_hit(self, hashes: Sequence[bytes], max_blocks: int) -> list[Block]:
        """The longest prefix whose last window is cached; blocks before the window are the null block."""
        # The block that EAGLE drops must not be missed by the window before it.
        needed = blocks_in_window(self.spec.reach, self.block_size) + self.eagle
        blocks = min(len(hashes), max_blocks)
        return window_hit(lambda index: self.find(hashes[index]), blocks, needed, self.pool.null_block)

    def findable(self, request: CacheRequest, table: list[Block], first: int, end: int) -> list[Block]:
        """All blocks, or those that the prompt sent again would find, and any prompt that shares its beginning."""
        blocks = super().findable(request, table, first, end)
        if self.spec.kept == "all":
            return blocks
        needed, null = blocks_in_window(self.spec.reach, self.block_size), self.pool.null_block
        # A prompt's last token is computed again, for its logits.
        ends = [
            tokens // self.step * self.step // self.block_size for tokens in (request.num_prompt - 1, request.junction)
        ]
        return [
            block if any(last - needed <= index < last for last in ends) else null
            for index, block in enumerate(blocks, first)
        ]

    def num_skipped(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self.spec.reach + 1)

    def most_held(self, num_tokens: int, step: int) -> int:
        # The window and the step may begin and end inside of blocks.
        window = -(-(self.spec.reach - 1 + step) // self.block_size) + 1
        return min(super().most_held(num_tokens, step), window)


class ChunkedLocalGroup(BlockGroup):
    """Each token attends to those before it in its own chunk of `reach` tokens."""

    def longest_hit(self, hashes: Sequence[bytes], max_blocks: int) -> list[Block]:
        """Full chunks need nothing of their past: null blocks up to the last chunk's start, then what is cached."""
        blocks = min(len(hashes), max_blocks)
        first = max_blocks * self.block_size // self.spec.reach * self.spec.reach // self.block_size
        found = [self.pool.null_block] * min(first, blocks)
        for digest in hashes[len(found) : blocks]:
            block = self.find(digest)
            if block is None:
                break
            found.append(block)
        return found

    def num_skipped(self, num_computed_tokens: int) -> int:
        return num_computed_tokens // self.spec.reach * self.spec.reach

    def most_held(self, num_tokens: int, step: int) -> int:
        chunk = -(-(self.spec.reach + step) // self.block_size) + 1
        return min(super().most_held(num_tokens, step), chunk)


def make_group(spec: GroupSpec, pool: BlockPool, *, number: int | None, merge: bool, eagle: bool) -> BlockGroup:
    """The group of a spec's kind."""
    kinds = {"full": BlockGroup, "sliding_window": SlidingWindowGroup, "chunked_local": ChunkedLocalGroup}
    return kinds[spec.kind](spec, pool, number=number, merge=merge, eagle=eagle)
