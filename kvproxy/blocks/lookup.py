"""The longest prefix that all KV cache groups of a model can reuse; the lookup of vLLM's `KVCacheCoordinator`."""

from collections.abc import Sequence
from math import lcm
from typing import Protocol, TypeVar

Hash = TypeVar("Hash")
Block = TypeVar("Block")


class SearchableGroup(Protocol[Hash, Block]):
    """A KV cache group of the embedded engine or of a mirrored engine."""

    @property
    def block_size(self) -> int:
        """Tokens in a block."""

    def group_hashes(self, hashes: Sequence[Hash]) -> Sequence[Hash]:
        """Select this group's block hashes from those of the smallest block size."""

    def find_longest_cache_hit(self, hashes: Sequence[Hash], max_blocks: int) -> list[Block]:
        """Return the blocks of the longest prefix that this group can reuse."""


def find_longest_cache_hit(
    groups: Sequence[SearchableGroup[Hash, Block]], hashes: Sequence[Hash], max_tokens: int, alignment_tokens: int = 1
) -> tuple[tuple[Sequence[Block], ...], int]:
    """Find the longest prefix that every group can reuse.

    Args:
        groups: groups of one model.
        hashes: hashes of the prompt's blocks of the smallest block size.
        max_tokens: maximum length of the prefix.
        alignment_tokens: the length is a multiple of this and of all block sizes.

    Returns:
        Each group's blocks, and the length of the prefix in tokens.
    """
    alignment = lcm(alignment_tokens, *(group.block_size for group in groups))
    if len(groups) == 1 and alignment == groups[0].block_size:
        found = groups[0].find_longest_cache_hit(hashes, max_tokens // alignment)
        return (found,), len(found) * alignment
    chains = [group.group_hashes(hashes) for group in groups]
    length = max_tokens // alignment * alignment
    blocks: list[list[Block]] = []
    # A group can only shorten the prefix that the other groups found: repeat until the length is stable.
    while True:
        before = length
        blocks = []
        for group, chain in zip(groups, chains, strict=True):
            found = group.find_longest_cache_hit(chain, length // group.block_size)
            length = min(length, len(found) * group.block_size // alignment * alignment)
            blocks.append(found)
        if length == before or length == 0:
            break
    cut = tuple(found[: length // group.block_size] for group, found in zip(groups, blocks, strict=True))
    return cut, length
