"""The longest prefix that all KV cache groups can reuse, as in vLLM's `KVCacheCoordinator`."""

from collections.abc import Sequence
from math import lcm
from typing import Protocol, TypeVar

Hash = TypeVar("Hash")
Block = TypeVar("Block")


class SearchableGroup(Protocol[Hash, Block]):
    @property
    def block_size(self) -> int: ...

    def group_hashes(self, hashes: Sequence[Hash]) -> Sequence[Hash]:
        """Select the hash of each block of this group: the last of the `hashes` that it spans."""

    def find_longest_cache_hit(self, hashes: Sequence[Hash], max_blocks: int) -> list[Block]: ...


def find_longest_cache_hit(
    groups: Sequence[SearchableGroup[Hash, Block]], hashes: Sequence[Hash], max_tokens: int, alignment_tokens: int = 1
) -> tuple[tuple[Sequence[Block], ...], int]:
    """Return each group's blocks of the longest prefix that all groups cache, and the prefix's length in tokens.

    The length is at most `max_tokens`, and a multiple of `alignment_tokens` and of all block sizes.
    """
    alignment = lcm(alignment_tokens, *(group.block_size for group in groups))
    if len(groups) == 1 and alignment == groups[0].block_size:
        found = groups[0].find_longest_cache_hit(hashes, max_tokens // alignment)
        return (found,), len(found) * alignment
    chains = [group.group_hashes(hashes) for group in groups]
    length = max_tokens // alignment * alignment
    blocks: list[list[Block]] = []
    # A group may shorten the prefix of the other groups: repeat until the length is stable.
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
