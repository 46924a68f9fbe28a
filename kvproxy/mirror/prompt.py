"""A prompt as pools are asked for it: its tokens, and the names of its blocks by each recipe."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvproxy.blocks.block_hash import BlockHasher, event_hash
from kvproxy.blocks.events import BlockStored
from kvproxy.blocks.request import CacheRequest
from kvproxy.mirror.wire import Extra

Content = tuple[tuple[int, ...], Extra]
"""A block's tokens, and what else names it."""


@dataclass(frozen=True, slots=True)
class NamedBlocks:
    """Names of a prompt's full blocks, in both published forms: raw digests, and their low 64 bits."""

    digests: list[bytes]
    numbers: list[int]


class Prompt:
    """A prompt. What is slow about it is computed once, however many pools are asked: see `prepare`.

    Args:
        tokens: token ids.
        salt: the request's cache salt.
        lora: name and path of its adapter.
    """

    def __init__(self, tokens: Sequence[int], *, salt: str | None = None, lora: tuple[str, str] | None = None) -> None:
        self.tokens = list(tokens)
        self.salt = salt
        self._lora = lora
        self._named: dict[tuple[bytes, str, int], NamedBlocks] = {}
        self._contents: dict[int, list[Content]] = {}

    def named(self, hasher: BlockHasher, size: int) -> NamedBlocks:
        """Names of the full blocks of `size` tokens. The first call hashes all tokens."""
        recipe = (hasher.none_hash, hasher.algorithm, size)
        found = self._named.get(recipe)
        if found is None:
            digests = self._request().update_hashes(hasher, size)
            found = self._named[recipe] = NamedBlocks(digests, [event_hash(digest) for digest in digests])
        return found

    def contents(self, size: int) -> list[Content]:
        """What the full blocks of `size` tokens hold, as it is published."""
        found = self._contents.get(size)
        if found is None:
            request, count = self._request(), len(self.tokens) // size
            extras = BlockStored.from_request(request, [b""] * count, None, 0, size, None).extra_keys or (None,) * count
            blocks = (tuple(self.tokens[index * size : (index + 1) * size]) for index in range(count))
            found = self._contents[size] = list(zip(blocks, extras, strict=True))
        return found

    def _request(self) -> CacheRequest:
        return CacheRequest("", self.tokens, salt=self.salt, lora=self._lora)
