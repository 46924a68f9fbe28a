"""The cached prefix of a prompt in a mirrored engine.

All functions read pools that events change: call them on the event loop.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.divergence import common_prefix, find_divergence
from kvproxy.blocks.longest_prefix import find_longest_cache_hit
from kvproxy.blocks.row_types import Divergence
from kvproxy.mirror.hashed_prompt import HashedPrompt
from kvproxy.mirror.mirrored_groups import NULL_BLOCK, MirroredGroup, MirroredWindowGroup, PromptHashes, make_groups
from kvproxy.mirror.mirrored_pool import MirroredBlock, MirroredPool

if TYPE_CHECKING:
    from kvproxy.mirror.mirror import Mirror

_MAX_CHAINS = 4
_MAX_CHAIN_TOKENS = 4_096


@dataclass(frozen=True, slots=True)
class MirrorMatch:
    """The cached prefix of a prompt.

    Attributes:
        blocks: cached blocks of the first KV cache group.
        hashes_match: whether the engine's hashes equal ours; None if nothing matched.
    """

    matched_tokens: int
    blocks: list[MirroredBlock]
    digests: list[bytes]
    hashes_match: bool | None
    divergence: Divergence | None


async def compute_hashes(prompt: HashedPrompt, mirrors: "Iterable[Mirror]") -> None:
    """Compute a prompt's hashes in a thread, for later lookups."""
    schemes = [scheme for mirror in mirrors for scheme in mirror.hash_schemes()]
    await asyncio.to_thread(lambda: [prompt.block_hashes(*scheme) for scheme in schemes])


def match_prefix(pools: Sequence[MirroredPool], prompt: HashedPrompt, hasher: BlockHasher) -> MirrorMatch:
    """Find the cached prefix in the pools of one rank; at least one token is left to compute, as in vLLM."""
    groups, hashes = make_groups(pools, prompt, hasher)
    found, length = _find_longest_hit(groups, hashes)
    blocks = [block for block in found if block is not NULL_BLOCK]
    return MirrorMatch(
        length,
        blocks,
        hashes.digests,
        hashes.has_computed_hash(groups[0].pool, length // hashes.block_size - 1) if blocks else None,
        _divergence(groups[0], prompt.tokens),
    )


def tokens_after(
    pools: Sequence[MirroredPool], prompt: HashedPrompt, hasher: BlockHasher
) -> tuple[int, list[list[int]], int] | None:
    """Return the length of the cached prefix, the tokens of the cached chains after it, and the block size.

    Returns None if no chain follows the prefix, or the first chain has the whole rest of the prompt.
    """
    groups, _ = make_groups(pools, prompt, hasher)
    if isinstance(groups[0], MirroredWindowGroup):
        return None
    pool, cached = groups[0].pool, groups[0].cached_blocks
    start = len(cached) * pool.block_size
    rest, chains = prompt.tokens[start:], list[list[int]]()
    children = pool.children(cached[-1].hash if cached else None)
    for child in sorted(children, key=lambda each: (common_prefix(each.tokens, rest), each.stored))[-_MAX_CHAINS:]:
        if list(child.tokens[: len(rest)]) == rest:
            return None
        chain: list[int] = []
        block: MirroredBlock | None = child
        while block is not None and len(block.tokens) == pool.block_size and len(chain) < _MAX_CHAIN_TOKENS:
            chain += block.tokens
            block = max(pool.children(block.hash), key=lambda each: each.stored, default=None)
        if chain:
            chains.append(chain)
    return (start, chains[::-1], pool.block_size) if chains else None


def matched_tokens(pools: Sequence[MirroredPool], prompt: HashedPrompt, hasher: BlockHasher) -> int:
    return _find_longest_hit(*make_groups(pools, prompt, hasher))[1]


def _find_longest_hit(groups: Sequence[MirroredGroup], hashes: PromptHashes) -> tuple[Sequence[MirroredBlock], int]:
    indexes = range(len(hashes.numbers))
    found, length = find_longest_cache_hit(groups, indexes, max(0, len(hashes.prompt.tokens) - 1))
    return found[0], length


def _divergence(group: MirroredGroup, tokens: list[int]) -> Divergence | None:
    if isinstance(group, MirroredWindowGroup):
        return None
    cached, size = group.cached_blocks, group.block_size
    children = group.pool.children(cached[-1].hash if cached else None)
    return find_divergence(tokens, len(cached) * size, size, (child.tokens for child in children))
