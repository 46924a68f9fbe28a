"""Finds the part of a prompt that an engine can load from the media behind its GPU, by the rules of each source of events.

Each engine's own lookup follows one of these rules:

- SGLang's HiCache, and vLLM's simple CPU offloading, continue the GPU's prefix block by block.
- vLLM's offloading connector continues it in chunks of blocks, and may load the last token of a prompt.
- LMCache and the Mooncake store match a prompt from its start, and the longer of both prefixes is used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import Literal, NamedTuple

from kvproxy.blocks.single_type_manager import blocks_in_window, find_longest_common_hit, find_window_hit
from kvproxy.upstreams.mirror.apply_events import MirroredBlock, MirroredPool, on_gpu
from kvproxy.upstreams.mirror.event_decoder import Hash
from kvproxy.upstreams.mirror.prompt_hashes import PromptHashes

Continuation = Literal["blocks", "chunks", "from start"]
MAX_ROUNDS = 100
"""Maximum lookups of all groups until they agree on a prefix: engines need a few, and forged events could require thousands."""
MAMBA_WINDOW = 2  # The next token requires only the block of the previous token.


class StoredBlock(NamedTuple):
    block: MirroredBlock
    medium: str


_NULL_BLOCK = StoredBlock(MirroredBlock(b"", None, (), None, 0), "")  # Replaces blocks before a sliding window.


@dataclass(frozen=True, slots=True)
class TierMatch:
    """Tokens after the GPU's prefix that can be loaded, in all and by medium."""

    num_tokens: int = 0
    by_medium: Mapping[str, int] = field(default_factory=dict)


def attention_window(pool: MirroredPool) -> int | None:
    """Return the attention window in tokens; None for full attention, and for an unknown attention type.

    A prefix in a pool with full attention requires all blocks, so predictions for unknown types are never too high.
    """
    if pool.kind == "mamba":
        return MAMBA_WINDOW
    return pool.window if pool.kind is not None and "sliding_window" in pool.kind else None


def match_tiers(
    pools: Sequence[MirroredPool], hashes: PromptHashes, gpu_tokens: int, last_hash: Hash | None
) -> TierMatch:
    """Return what the pools behind the GPU add to a prefix of `gpu_tokens`, whose last block has the hash `last_hash`."""
    gpu = on_gpu(pools)
    sources: dict[Continuation, list[MirroredPool]] = {}
    for pool in pools:
        if pool not in gpu and pool.blocks:
            sources.setdefault(_continuation(pool, gpu), []).append(pool)
    if "chunks" in sources:
        sources["chunks"] += sources.pop("blocks", [])
    matches = [_match_source(kind, source, gpu, hashes, gpu_tokens, last_hash) for kind, source in sources.items()]
    return max(matches, key=lambda match: match.num_tokens, default=TierMatch())


def _continuation(pool: MirroredPool, gpu: Sequence[MirroredPool]) -> Continuation:
    if not pool.is_described:
        return "chunks"
    if pool.kind is not None:
        return "blocks" if pool.locality is not None else "chunks"
    if any(other.group is not None for other in gpu):
        # vLLM names groups and kinds, and its connectors to other caches do not.
        return "from start"
    return "blocks" if not gpu or pool.block_size == gpu[0].block_size else "from start"


class TierLookup:
    """The blocks of one KV cache group in the media behind the GPU, from a token of the prompt on (`start`)."""

    def __init__(
        self,
        pools: Sequence[MirroredPool],
        hashes: PromptHashes,
        block_size: int,
        window_blocks: int | None,
        start: int,
        last_hash: Hash | None,
    ) -> None:
        self.block_size = block_size
        self._pools = pools
        self._hashes = hashes
        self.window_blocks = window_blocks
        self._hashes_per_block = block_size // hashes.block_size
        self._blocks = [] if window_blocks is not None else self._find_blocks(start, last_hash)

    def _find_blocks(self, start: int, parent: Hash | None) -> list[StoredBlock]:
        blocks: list[StoredBlock] = []
        first = start // self._hashes.block_size + self._hashes_per_block - 1
        for index in range(first, len(self._hashes.digests), self._hashes_per_block):
            stored = self._find(index)
            if stored is None:
                stored = self._find_by_content(index, parent)
                if stored is None:
                    break
                self._hashes.engine_hashes[index] = stored.block.hash
            parent = stored.block.hash
            blocks.append(stored)
        return blocks

    def _find(self, index: int) -> StoredBlock | None:
        for pool in self._pools:
            if (block := self._hashes.find_block(pool, index)) is not None:
                return StoredBlock(block, pool.medium)
        return None

    def _find_by_content(self, index: int, parent: Hash | None) -> StoredBlock | None:
        place = (index + 1) // self._hashes_per_block - 1
        tokens, extra = self._hashes.prompt.block_contents(self.block_size)[place]
        for pool in self._pools:
            if (block := pool.find_child(parent, tokens, extra)) is not None:
                return StoredBlock(block, pool.medium)
        return None

    def select_hashes(self, hashes: Sequence[int]) -> Sequence[int]:
        return hashes[self._hashes_per_block - 1 :: self._hashes_per_block]

    def find_longest_cache_hit(self, hashes: Sequence[int], max_blocks: int) -> list[StoredBlock]:
        if self.window_blocks is None:
            return self._blocks[:max_blocks]
        return find_window_hit(
            lambda index: self._find(hashes[index]), min(len(hashes), max_blocks), self.window_blocks, _NULL_BLOCK
        )


def _match_source(
    kind: Continuation,
    source: Sequence[MirroredPool],
    gpu: Sequence[MirroredPool],
    hashes: PromptHashes,
    gpu_tokens: int,
    last_hash: Hash | None,
) -> TierMatch:
    if kind == "from start" and all(pool.group is None for pool in source):
        return _match_chains(source, hashes, gpu_tokens)
    groups = {pool.group: pool for pool in gpu} or {pool.group: pool for pool in source if pool.block_size}
    members = [(described, [pool for pool in source if pool.group == group]) for group, described in groups.items()]
    if not members or not all(pools for _, pools in members):
        return TierMatch()
    chunks = [_chunk_tokens(kind, described, pools) for described, pools in members]
    sizes = [_block_size(described, pools) for described, pools in members]
    if any(size % hashes.block_size for size in sizes):
        return TierMatch()
    alignment = lcm(*chunks, *sizes)
    start = 0 if kind == "from start" else gpu_tokens // alignment * alignment
    parent = last_hash if start == gpu_tokens else _hash_before(start, hashes, gpu)
    lookups = [
        TierLookup(pools, hashes, size, _window_blocks(kind, described, size), start, parent if start else None)
        for (described, pools), size in zip(members, sizes, strict=True)
    ]
    # Groups with full attention find the engine's hashes for the groups after them.
    lookups.sort(key=lambda lookup: lookup.window_blocks is not None)
    length = len(hashes.prompt.tokens)
    limit = length - 1 if kind == "blocks" else length
    rest = range(start // hashes.block_size, len(hashes.digests))
    group_blocks, num_tokens = find_longest_common_hit(lookups, rest, max(0, limit - start), alignment, MAX_ROUNDS)
    end = start + num_tokens
    # The connector excludes the last token of a hybrid model's prompt before it compares the rest with a chunk.
    loadable = min(end, length - 1) if any(lookup.window_blocks is not None for lookup in lookups) else end
    if loadable <= gpu_tokens or (kind == "chunks" and loadable - gpu_tokens < max(chunks)):
        return TierMatch()
    return _count_by_medium(group_blocks[0], lookups[0].block_size, start, gpu_tokens, min(end, length - 1))


def _match_chains(source: Sequence[MirroredPool], hashes: PromptHashes, gpu_tokens: int) -> TierMatch:
    """Match a prompt from its start in pools with hashes of their own."""
    prompt, size = hashes.prompt, max(pool.block_size for pool in source)
    blocks: list[StoredBlock] = []
    if prompt.salt is not None:
        # LMCache separates salted prompts, but does not publish salts.
        return TierMatch()
    parent: Hash | None = None
    for tokens, extra in prompt.block_contents(size):
        stored = next(
            (StoredBlock(block, pool.medium) for pool in source if (block := pool.find_child(parent, tokens, extra))),
            None,
        )
        if stored is None:
            break
        blocks.append(stored)
        parent = stored.block.hash
    return _count_by_medium(blocks, size, 0, gpu_tokens, min(len(blocks) * size, len(prompt.tokens) - 1))


def _count_by_medium(blocks: Sequence[StoredBlock], size: int, start: int, gpu_tokens: int, end: int) -> TierMatch:
    counts: dict[str, int] = {}
    # Blocks before a sliding window are not loaded, so they count as the medium of the window.
    medium = next((stored.medium for stored in blocks if stored is not _NULL_BLOCK), "")
    for place, stored in enumerate(blocks):
        if stored is not _NULL_BLOCK:
            medium = stored.medium
        first = start + place * size
        num_tokens = min(end, first + size) - max(gpu_tokens, first)
        if num_tokens > 0:
            counts[medium] = counts.get(medium, 0) + num_tokens
    return TierMatch(sum(counts.values()), counts)


def _chunk_tokens(kind: Continuation, described: MirroredPool, pools: Sequence[MirroredPool]) -> int:
    if kind != "chunks":
        return 1
    return max([pool.chunk_tokens or pool.block_size for pool in pools if pool.block_size] or [described.block_size])


def _block_size(described: MirroredPool, pools: Sequence[MirroredPool]) -> int:
    sizes = [pool.block_size for pool in pools if pool.block_size]
    return min(sizes, default=described.block_size) or described.block_size


def _window_blocks(kind: Continuation, pool: MirroredPool, block_size: int) -> int | None:
    if pool.kind == "mamba":
        return 1
    window = attention_window(pool)
    if window is None:
        return None
    return -(-window // block_size) if kind == "chunks" else blocks_in_window(window, block_size)


def _hash_before(start: int, hashes: PromptHashes, gpu: Sequence[MirroredPool]) -> Hash | None:
    index = start // hashes.block_size - 1
    if index < 0:
        return None
    block = next((block for pool in gpu if (block := hashes.find_block(pool, index)) is not None), None)
    return None if block is None else block.hash
