"""The block hashes of a prompt, as the engines of mirrors compute them."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from kvproxy.blocks.block_hash import BlockHasher, event_hash
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.events import published_extra_keys
from kvproxy.upstreams.mirror.apply_events import MirroredBlock, MirroredPool
from kvproxy.upstreams.mirror.event_decoder import BlockExtraKeys, Hash


class HashedPrompt:
    """A tokenized prompt that caches its block hashes."""

    def __init__(self, tokens: Sequence[int], *, salt: str | None = None) -> None:
        self.tokens = list(tokens)
        self.salt = salt
        self._hashes: dict[tuple[bytes, str, int], tuple[list[bytes], list[int]]] = {}
        self._contents: dict[int, list[tuple[tuple[int, ...], BlockExtraKeys]]] = {}

    def block_hashes(self, hasher: BlockHasher, block_size: int) -> tuple[list[bytes], list[int]]:
        """Return the hashes of the full blocks in both forms that engines publish: digests, and the low 64 bits of each."""
        key = (hasher.none_hash, hasher.algorithm, block_size)
        if key not in self._hashes:
            digests = self._cache_request().update_hashes(hasher, block_size)
            self._hashes[key] = digests, [event_hash(digest) for digest in digests]
        return self._hashes[key]

    def block_contents(self, block_size: int) -> list[tuple[tuple[int, ...], BlockExtraKeys]]:
        """Return the tokens of each full block, and the extra keys that engines publish with them."""
        if block_size not in self._contents:
            count = len(self.tokens) // block_size
            extra = published_extra_keys(self._cache_request(), 0, count * block_size, block_size) or (None,) * count
            blocks = (tuple(self.tokens[index * block_size : (index + 1) * block_size]) for index in range(count))
            self._contents[block_size] = list(zip(blocks, extra, strict=True))
        return self._contents[block_size]

    def _cache_request(self) -> CacheRequest:
        return CacheRequest("", self.tokens, cache_salt=self.salt)


class BlockHashes(Protocol):
    """A mirror's algorithm, the sizes of blocks that it hashes, and the unit of reuse; all in tokens."""

    hasher: BlockHasher

    def hash_block_sizes(self) -> Iterable[int]: ...

    def reuse_unit(self) -> int: ...


async def compute_hashes(prompt: HashedPrompt, mirrors: Iterable[BlockHashes]) -> None:
    """Compute the block hashes of a prompt for all mirrors, in a thread, because a long prompt takes some time."""
    sizes = [(mirror.hasher, size) for mirror in mirrors for size in (*mirror.hash_block_sizes(), mirror.reuse_unit())]
    await asyncio.to_thread(lambda: [prompt.block_hashes(hasher, size) for hasher, size in sizes])


class PromptHashes:
    """The hashes of a prompt, one for every `block_size` tokens. `block_size` divides the block sizes of all groups."""

    def __init__(self, prompt: HashedPrompt, hasher: BlockHasher, block_size: int) -> None:
        self.prompt = prompt
        self.block_size = block_size
        self.digests, self._short_hashes = prompt.block_hashes(hasher, block_size)
        # The engine's hash of a block, by its index, if it differs from the computed hash.
        self.engine_hashes: dict[int, Hash] = {}

    def find_block(self, pool: MirroredPool, index: int) -> MirroredBlock | None:
        block = pool.blocks.get(self._short_hashes[index]) or pool.blocks.get(self.digests[index])
        if block is None and index in self.engine_hashes:
            block = pool.blocks.get(self.engine_hashes[index])
        return block
