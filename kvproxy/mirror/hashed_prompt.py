from collections.abc import Sequence

from kvproxy.blocks.block_hash import BlockHasher, event_hash
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.events import BlockStored
from kvproxy.mirror.event_decoder import BlockExtraKeys

BlockTokens = tuple[tuple[int, ...], BlockExtraKeys]


class HashedPrompt:
    """A tokenized prompt that caches its block hashes."""

    def __init__(self, tokens: Sequence[int], *, salt: str | None = None) -> None:
        self.tokens = list(tokens)
        self.salt = salt
        self._hashes: dict[tuple[bytes, str, int], tuple[list[bytes], list[int]]] = {}
        self._contents: dict[int, list[BlockTokens]] = {}

    def block_hashes(self, hasher: BlockHasher, block_size: int) -> tuple[list[bytes], list[int]]:
        """Return the hashes of the full blocks in both forms that engines publish: digests, and the low 64 bits of each."""
        key = (hasher.none_hash, hasher.algorithm, block_size)
        found = self._hashes.get(key)
        if found is None:
            digests = self._cache_request().update_hashes(hasher, block_size)
            found = self._hashes[key] = digests, [event_hash(digest) for digest in digests]
        return found

    def block_contents(self, block_size: int) -> list[BlockTokens]:
        """Return the tokens of each full block, and the extra keys that engines publish with them."""
        found = self._contents.get(block_size)
        if found is None:
            request, count = self._cache_request(), len(self.tokens) // block_size
            event = BlockStored.from_request(request, [b""] * count, None, 0, block_size, None)
            blocks = (tuple(self.tokens[index * block_size : (index + 1) * block_size]) for index in range(count))
            found = self._contents[block_size] = list(zip(blocks, event.extra_keys or (None,) * count, strict=True))
        return found

    def _cache_request(self) -> CacheRequest:
        return CacheRequest("", self.tokens, salt=self.salt)
