"""Finds the cached prefix of a prompt in the KV cache groups of a mirrored engine.

Call all functions on the event loop, because KV events change the pools.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import NamedTuple

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.divergence import Divergence, common_prefix_length, find_divergence
from kvproxy.blocks.single_type_manager import blocks_in_window, find_longest_common_hit, find_window_hit
from kvproxy.upstreams.mirror.apply_events import MirroredBlock, MirroredPool, on_gpu
from kvproxy.upstreams.mirror.prompt_hashes import HashedPrompt, PromptHashes
from kvproxy.upstreams.mirror.tier_match import MAX_ROUNDS, TierMatch, attention_window, match_tiers

_NULL_BLOCK = MirroredBlock(b"", None, (), None, 0)  # Replaces blocks before a sliding window.
DEFAULT_BLOCK_SIZE = 16
_MAX_CHAINS = 4
_MAX_CHAIN_TOKENS = 4_096


class GroupLookup:
    """Finds the cached blocks of one prompt in one KV cache group of a mirrored engine."""

    def __init__(self, pool: MirroredPool, hashes: PromptHashes) -> None:
        self.pool = pool
        self.hashes = hashes
        self.block_size = pool.block_size
        self.window = attention_window(pool)
        self._hashes_per_block = pool.block_size // hashes.block_size
        # The prompt's blocks before the first uncached one, in a group with full attention.
        self.cached_blocks = self._find_blocks() if self.window is None else []

    def _find_blocks(self) -> list[MirroredBlock]:
        blocks: list[MirroredBlock] = []
        hashes = self.hashes
        for index in range(self._hashes_per_block - 1, len(hashes.digests), self._hashes_per_block):
            block = hashes.find_block(self.pool, index)
            if block is None:
                tokens, extra = hashes.prompt.block_contents(self.block_size)[len(blocks)]
                block = self.pool.find_child(blocks[-1].hash if blocks else None, tokens, extra)
                if block is None:
                    break
                hashes.engine_hashes[index] = block.hash
            blocks.append(block)
        return blocks

    def blocks_after_prefix(self) -> list[MirroredBlock]:
        return self.pool.children(self.cached_blocks[-1].hash if self.cached_blocks else None)

    def select_hashes(self, hashes: Sequence[int]) -> Sequence[int]:
        return hashes[self._hashes_per_block - 1 :: self._hashes_per_block]

    def find_longest_cache_hit(self, hashes: Sequence[int], max_blocks: int) -> list[MirroredBlock]:
        if self.window is None:
            return self.cached_blocks[:max_blocks]
        return find_window_hit(
            lambda index: self.hashes.find_block(self.pool, hashes[index]),
            min(len(hashes), max_blocks),
            blocks_in_window(self.window, self.block_size),
            _NULL_BLOCK,
        )


def _group_lookups(
    pools: Sequence[MirroredPool], prompt: HashedPrompt, hasher: BlockHasher, unit: int | None
) -> list[GroupLookup]:
    """Return lookups in the GPU's pools; without a GPU pool, in an empty one."""
    block_size = hash_block_size(pools, unit)
    hashes = PromptHashes(prompt, hasher, block_size)
    # A group with full attention finds the engine's hashes for the groups after it.
    gpu = sorted(on_gpu(pools), key=lambda pool: attention_window(pool) is not None)
    return [GroupLookup(pool, hashes) for pool in gpu or [_empty_pool(block_size)]]


def _empty_pool(block_size: int) -> MirroredPool:
    pool = MirroredPool()
    pool.block_size = block_size
    return pool


def hash_block_size(pools: Sequence[MirroredPool], unit: int | None = None) -> int:
    """Return the number of tokens that an engine's block hash covers. `unit` is vLLM's `--prefix-match-unit`, if it is set."""
    sizes = [pool.block_size for pool in on_gpu(pools) or pools if pool.block_size]
    smallest = gcd(*sizes) or DEFAULT_BLOCK_SIZE
    return unit if unit and smallest % unit == 0 else smallest


def reuse_unit(pools: Sequence[MirroredPool]) -> int:
    """Return the least common multiple of the GPU groups' block sizes: a reused prefix is a multiple of it."""
    return lcm(*(pool.block_size for pool in on_gpu(pools) if pool.block_size)) if on_gpu(pools) else DEFAULT_BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class MirrorMatch:
    """The cached prefix of a prompt in one rank.

    Attributes:
        matched_tokens: length of the prefix on the GPU.
        blocks: the prefix's blocks in `group`.
        group: the first KV cache group, with full attention if there is any.
        tiers: tokens after this prefix that the engine can load from other media.
    """

    matched_tokens: int
    blocks: list[MirroredBlock]
    group: GroupLookup
    tiers: TierMatch

    @property
    def reusable_tokens(self) -> int:
        return self.matched_tokens + self.tiers.num_tokens

    def divergence(self) -> Divergence | None:
        group = self.group
        if group.window is not None:
            return None
        start = len(group.cached_blocks) * group.block_size
        children = (child.tokens for child in group.blocks_after_prefix())
        return find_divergence(group.hashes.prompt.tokens, start, group.block_size, children)


def match_prefix(
    pools: Sequence[MirroredPool], prompt: HashedPrompt, hasher: BlockHasher, unit: int | None = None
) -> MirrorMatch:
    """Find a prompt's cached prefix in the pools of one rank. As in vLLM, it excludes the prompt's last token.

    `unit` is vLLM's `--prefix-match-unit`, if it is set.
    """
    groups = _group_lookups(pools, prompt, hasher, unit)
    hashes = groups[0].hashes
    group_blocks, length = find_longest_common_hit(
        groups, range(len(hashes.digests)), max(0, len(prompt.tokens) - 1), max_rounds=MAX_ROUNDS
    )
    blocks = [block for block in group_blocks[0] if block is not _NULL_BLOCK]
    tiers = match_tiers(pools, hashes, length, blocks[-1].hash if blocks else None)
    return MirrorMatch(length, blocks, groups[0], tiers)


class CachedChains(NamedTuple):
    """Token ids of cached chains that continue the cached prefix of a prompt, the most similar to the prompt first."""

    prefix_tokens: int
    chains: list[list[int]]
    block_size: int


def chains_after_prefix(
    pools: Sequence[MirroredPool], prompt: HashedPrompt, hasher: BlockHasher, unit: int | None = None
) -> CachedChains | None:
    """Return cached chains that continue the prompt's cached prefix differently than the prompt.

    Return None if no chain continues the prefix, or if a chain contains the whole rest of the prompt.
    """
    group = _group_lookups(pools, prompt, hasher, unit)[0]
    if group.window is not None:
        return None
    pool = group.pool
    start = len(group.cached_blocks) * pool.block_size
    rest, chains = prompt.tokens[start:], list[list[int]]()
    children = sorted(
        group.blocks_after_prefix(),
        key=lambda candidate: (common_prefix_length(candidate.tokens, rest), candidate.stored),
        reverse=True,
    )
    for child in children[:_MAX_CHAINS]:
        if list(child.tokens[: len(rest)]) == rest:
            return None
        chain: list[int] = []
        block: MirroredBlock | None = child
        while block is not None and len(block.tokens) == pool.block_size and len(chain) < _MAX_CHAIN_TOKENS:
            chain += block.tokens
            block = max(pool.children(block.hash), key=lambda candidate: candidate.stored, default=None)
        if chain:
            chains.append(chain)
    return CachedChains(start, chains, pool.block_size) if chains else None
