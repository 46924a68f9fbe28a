"""A mirrored pool as an attention group in which a prompt is looked up: what the engine itself would find there.

The groups of one rank are asked together by `kvproxy.blocks.lookup.reusable`, as the block cache asks its own.
"""

from collections.abc import Sequence
from math import gcd

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.single_type_manager import blocks_in_window, find_window_hit
from kvproxy.mirror.pool import MirroredBlock, MirroredPool
from kvproxy.mirror.prompt import NamedBlocks, Prompt
from kvproxy.mirror.wire import Hash

NULL = MirroredBlock(b"", None, (), None, 0)
"""Stands for a block before a window, which nothing attends to."""
_MAMBA_WINDOW = 2
"""A state-space group needs the state at the prefix's end alone: the block before the next token."""


class PromptNames:
    """What a rank calls a prompt's blocks.

    Args:
        prompt: the prompt.
        hasher: the recipe that we were told.
        size: tokens in the smallest block of all groups; a bigger one has the name of the last small one in it.
    """

    def __init__(self, prompt: Prompt, hasher: BlockHasher, size: int) -> None:
        self.prompt = prompt
        self.size = size
        self.named: NamedBlocks = prompt.named(hasher, size)
        self.aliases: dict[int, Hash] = {}
        """Names by another recipe, learnt by following the tokens: for small block number `i`, if one ends there."""

    def find(self, pool: MirroredPool, index: int) -> MirroredBlock | None:
        """The block of a pool that ends with small block number `index`."""
        blocks = pool.blocks
        block = blocks.get(self.named.numbers[index]) or blocks.get(self.named.digests[index])
        if block is None and index in self.aliases:
            block = blocks.get(self.aliases[index])
        return block

    def by_recipe(self, pool: MirroredPool, index: int) -> bool:
        """Whether a pool has the block under the name that we compute."""
        return self.named.numbers[index] in pool.blocks or self.named.digests[index] in pool.blocks


class FullGroup:
    """A group that attends to all of the past. `followed` are its blocks from the prompt's first to the first miss."""

    def __init__(self, pool: MirroredPool, names: PromptNames) -> None:
        self.pool = pool
        self.block_size = pool.block_size
        self._factor = pool.block_size // names.size
        self.followed = self._follow(names)

    def _follow(self, names: PromptNames) -> list[MirroredBlock]:
        """By name, and where the engine names blocks by another recipe, by their content."""
        found: list[MirroredBlock] = []
        numbers, digests, aliases, cached = names.named.numbers, names.named.digests, names.aliases, self.pool.blocks
        for index in range(self._factor - 1, len(numbers), self._factor):
            block = cached.get(numbers[index]) or cached.get(digests[index])
            if block is None:
                block = cached.get(aliases[index]) if index in aliases else None
            if block is None:
                tokens, extra = names.prompt.contents(self.block_size)[len(found)]
                block = self.pool.follow(found[-1].hash if found else None, tokens, extra)
                if block is None:
                    break
                aliases[index] = block.hash
            found.append(block)
        return found

    def group_hashes(self, hashes: Sequence[int]) -> Sequence[int]:
        return hashes[self._factor - 1 :: self._factor]

    def find_longest_cache_hit(self, hashes: Sequence[int], max_blocks: int) -> list[MirroredBlock]:
        return self.followed[:max_blocks]


class WindowGroup:
    """A group that attends to a sliding window, or to a state at the prefix's end."""

    def __init__(self, pool: MirroredPool, names: PromptNames, window: int) -> None:
        self.pool = pool
        self.block_size = pool.block_size
        self._names = names
        self._factor = pool.block_size // names.size
        self._needed = blocks_in_window(window, pool.block_size)

    def group_hashes(self, hashes: Sequence[int]) -> Sequence[int]:
        return hashes[self._factor - 1 :: self._factor]

    def find_longest_cache_hit(self, hashes: Sequence[int], max_blocks: int) -> list[MirroredBlock]:
        blocks = min(len(hashes), max_blocks)
        return find_window_hit(lambda place: self._names.find(self.pool, hashes[place]), blocks, self._needed, NULL)


Group = FullGroup | WindowGroup


def make_groups(pools: Sequence[MirroredPool], prompt: Prompt, hasher: BlockHasher) -> tuple[list[Group], PromptNames]:
    """The groups of one rank for one prompt, those with full attention first, as the engine asks them.

    A kind that we do not know is taken for full attention, and so is chunked local attention, whose chunk is not published:
    such a group may be able to reuse more than we say, never less.
    """
    names = PromptNames(prompt, hasher, hash_size(pools))
    full = [FullGroup(pool, names) for pool in pools if window_of(pool) is None]
    windows = [WindowGroup(pool, names, window) for pool in pools if (window := window_of(pool)) is not None]
    return [*full, *windows], names


def window_of(pool: MirroredPool) -> int | None:
    """How many tokens of the past a group attends to; None for all of them, or where it is not told."""
    if pool.kind == "mamba":
        return _MAMBA_WINDOW
    return pool.window if pool.kind is not None and "sliding_window" in pool.kind else None


def hash_size(pools: Sequence[MirroredPool]) -> int:
    """Tokens in the blocks that are hashed, which the blocks of all groups are made of."""
    return gcd(*(pool.block_size for pool in pools))
