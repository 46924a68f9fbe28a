"""KV cache groups of a mirrored engine, in which `blocks.longest_prefix` searches a prompt's prefix."""

from collections.abc import Sequence
from math import gcd

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.single_type_manager import blocks_in_window, find_window_hit
from kvproxy.mirror.apply_events import MirroredBlock, MirroredPool
from kvproxy.mirror.event_decoder import Hash
from kvproxy.mirror.hashed_prompt import HashedPrompt

NULL_BLOCK = MirroredBlock(b"", None, (), None, 0)
"""Placeholder for blocks before a sliding window, which need not be cached."""
_MAMBA_WINDOW = 2  # The next token requires only the block of the previous token.


class PromptHashes:
    """The hashes of a prompt, one for every `block_size` tokens.

    `block_size` divides the block sizes of all groups. A group's block has the hash of its last `block_size` tokens.
    """

    def __init__(self, prompt: HashedPrompt, hasher: BlockHasher, block_size: int) -> None:
        self.prompt = prompt
        self.block_size = block_size
        self.digests, self.short_hashes = prompt.block_hashes(hasher, block_size)
        self.engine_hashes: dict[int, Hash] = {}

    def find_block(self, pool: MirroredPool, index: int) -> MirroredBlock | None:
        block = self.find_by_computed_hash(pool, index)
        if block is None and index in self.engine_hashes:
            block = pool.blocks.get(self.engine_hashes[index])
        return block

    def find_by_computed_hash(self, pool: MirroredPool, index: int) -> MirroredBlock | None:
        return pool.blocks.get(self.short_hashes[index]) or pool.blocks.get(self.digests[index])


class MirroredGroup:
    """A KV cache group with full attention. `cached_blocks` are the prompt's blocks before the first uncached one."""

    def __init__(self, pool: MirroredPool, hashes: PromptHashes) -> None:
        self.pool = pool
        self.block_size = pool.block_size
        self._hashes = hashes
        self._hashes_per_block = pool.block_size // hashes.block_size
        self.cached_blocks = self._find_blocks()

    def _find_blocks(self) -> list[MirroredBlock]:
        found: list[MirroredBlock] = []
        hashes = self._hashes
        for index in range(self._hashes_per_block - 1, len(hashes.digests), self._hashes_per_block):
            block = hashes.find_block(self.pool, index)
            if block is None:
                tokens, extra = hashes.prompt.block_contents(self.block_size)[len(found)]
                block = self.pool.find_child(found[-1].hash if found else None, tokens, extra)
                if block is None:
                    break
                hashes.engine_hashes[index] = block.hash  # It differs from the computed hash.
            found.append(block)
        return found

    def group_hashes(self, hashes: Sequence[int]) -> Sequence[int]:
        return hashes[self._hashes_per_block - 1 :: self._hashes_per_block]

    def find_longest_cache_hit(self, hashes: Sequence[int], max_blocks: int) -> list[MirroredBlock]:
        return self.cached_blocks[:max_blocks]


class MirroredWindowGroup(MirroredGroup):
    """A KV cache group with a sliding window, or a Mamba group, whose blocks store the state at their end."""

    def __init__(self, pool: MirroredPool, hashes: PromptHashes, window: int) -> None:
        super().__init__(pool, hashes)
        self._window_blocks = blocks_in_window(window, pool.block_size)

    def _find_blocks(self) -> list[MirroredBlock]:
        return []

    def find_longest_cache_hit(self, hashes: Sequence[int], max_blocks: int) -> list[MirroredBlock]:
        num_blocks = min(len(hashes), max_blocks)
        return find_window_hit(
            lambda index: self._hashes.find_block(self.pool, hashes[index]), num_blocks, self._window_blocks, NULL_BLOCK
        )


def make_groups(
    pools: Sequence[MirroredPool], prompt: HashedPrompt, hasher: BlockHasher
) -> tuple[list[MirroredGroup], PromptHashes]:
    """Return the groups of one rank, those with full attention first, and the prompt's hashes.

    An unknown attention type counts as full attention, which requires all blocks of a prefix. This may predict too little
    reuse, but never too much.
    """
    hashes = PromptHashes(prompt, hasher, hash_block_size(pools))
    windows = [(pool, attention_window(pool)) for pool in pools]
    groups = [MirroredGroup(pool, hashes) for pool, window in windows if window is None]
    groups += [MirroredWindowGroup(pool, hashes, window) for pool, window in windows if window is not None]
    return groups, hashes


def attention_window(pool: MirroredPool) -> int | None:
    if pool.kind == "mamba":
        return _MAMBA_WINDOW
    return pool.window if pool.kind is not None and "sliding_window" in pool.kind else None


def hash_block_size(pools: Sequence[MirroredPool]) -> int:
    return gcd(*(pool.block_size for pool in pools))
