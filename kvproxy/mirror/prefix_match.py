"""Finds the cached prefix of a prompt in a mirrored engine.

Call all functions on the event loop, because KV events change the pools.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.divergence import common_prefix_length, find_divergence
from kvproxy.blocks.longest_prefix import find_longest_cache_hit
from kvproxy.blocks.row_types import Divergence
from kvproxy.mirror.apply_events import MirroredBlock, MirroredPool
from kvproxy.mirror.hashed_prompt import HashedPrompt
from kvproxy.mirror.mirrored_groups import NULL_BLOCK, MirroredGroup, MirroredWindowGroup, PromptHashes, make_groups

if TYPE_CHECKING:
    from kvproxy.mirror.mirror import Mirror

_MAX_CHAINS = 4
_MAX_CHAIN_TOKENS = 4_096


@dataclass(frozen=True, slots=True)
class MirrorMatch:
    """The cached prefix of a prompt in one rank.

    Attributes:
        blocks: the prefix's blocks in `group`.
        hashes: block hashes that the proxy computed.
        hashes_match: whether the engine publishes the same hashes; None without a cached prefix.
        group: the first KV cache group, with full attention if there is any.
    """

    matched_tokens: int
    blocks: list[MirroredBlock]
    hashes: PromptHashes
    hashes_match: bool | None
    group: MirroredGroup

    def divergence(self) -> Divergence | None:
        group, tokens = self.group, self.hashes.prompt.tokens
        if isinstance(group, MirroredWindowGroup):
            return None
        cached, size = group.cached_blocks, group.block_size
        children = group.pool.children(cached[-1].hash if cached else None)
        return find_divergence(tokens, len(cached) * size, size, (child.tokens for child in children))


class CachedChains(NamedTuple):
    """Token ids of cached chains that continue the cached prefix of a prompt, the most similar to the prompt first."""

    prefix_tokens: int
    chains: list[list[int]]
    block_size: int


async def compute_hashes(prompt: HashedPrompt, mirrors: "Iterable[Mirror]") -> None:
    """Compute the block hashes of a prompt for all mirrors, in a thread, because a long prompt takes some time."""
    sizes = [(mirror.hasher, size) for mirror in mirrors for size in mirror.hash_block_sizes()]
    await asyncio.to_thread(lambda: [prompt.block_hashes(hasher, size) for hasher, size in sizes])


def match_prefix(pools: Sequence[MirroredPool], prompt: HashedPrompt, hasher: BlockHasher) -> MirrorMatch:
    """Find a prompt's cached prefix in the pools of one rank. As in vLLM, it excludes the prompt's last token."""
    groups, hashes = make_groups(pools, prompt, hasher)
    found, length = find_longest_cache_hit(groups, range(len(hashes.digests)), max(0, len(prompt.tokens) - 1))
    blocks, last = [block for block in found[0] if block is not NULL_BLOCK], length // hashes.block_size - 1
    hashes_match = hashes.find_by_computed_hash(groups[0].pool, last) is not None if blocks else None
    return MirrorMatch(length, blocks, hashes, hashes_match, groups[0])


def chains_after_prefix(
    pools: Sequence[MirroredPool], prompt: HashedPrompt, hasher: BlockHasher
) -> CachedChains | None:
    """Return cached chains that continue the prompt's cached prefix differently than the prompt.

    Return None if no chain continues the prefix, or if a chain contains the whole rest of the prompt.
    """
    groups, _ = make_groups(pools, prompt, hasher)
    if isinstance(groups[0], MirroredWindowGroup):
        return None
    pool, cached = groups[0].pool, groups[0].cached_blocks
    start = len(cached) * pool.block_size
    rest, chains = prompt.tokens[start:], list[list[int]]()
    children = pool.children(cached[-1].hash if cached else None)
    for child in sorted(children, key=lambda each: (common_prefix_length(each.tokens, rest), each.stored))[
        -_MAX_CHAINS:
    ]:
        if list(child.tokens[: len(rest)]) == rest:
            return None
        chain: list[int] = []
        block: MirroredBlock | None = child
        while block is not None and len(block.tokens) == pool.block_size and len(chain) < _MAX_CHAIN_TOKENS:
            chain += block.tokens
            block = max(pool.children(block.hash), key=lambda each: each.stored, default=None)
        if chain:
            chains.append(chain)
    return CachedChains(start, chains[::-1], pool.block_size) if chains else None
