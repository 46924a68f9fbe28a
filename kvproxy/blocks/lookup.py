"""The longest prefix that all attention groups of a model can reuse together."""

from collections.abc import Sequence
from dataclasses import replace
from math import gcd, lcm
from typing import Protocol, TypeVar

from kvproxy.blocks.block import Block
from kvproxy.blocks.groups import BlockGroup, GroupSpec
from kvproxy.blocks.pool import BlockPool
from kvproxy.blocks.windows import make_group

GroupBlocks = tuple[Sequence[Block], ...]
Name = TypeVar("Name")
Found = TypeVar("Found")


class Searchable(Protocol[Name, Found]):
    """A group in which a prompt's blocks can be looked up: the block cache's own, or one that is mirrored."""

    @property
    def block_size(self) -> int:
        """Tokens in a block."""

    @property
    def eagle(self) -> bool:
        """Whether every hit loses its last block."""

    def names(self, hashes: Sequence[Name]) -> Sequence[Name]:
        """Names of this group's blocks, from those of the smallest block of all groups."""

    def longest_hit(self, hashes: Sequence[Name], max_blocks: int) -> list[Found]:
        """Blocks of the longest prefix that this group can reuse."""


def make_groups(
    specs: Sequence[GroupSpec] | None,
    block_size: int,
    context_parallel: int,
    pool: BlockPool,
    *,
    merge: bool,
    eagle: bool,
) -> tuple[tuple[BlockGroup, ...], int]:
    """Groups over a pool, in the order of their specs, and the block size at which tokens are hashed."""
    specs = tuple(specs) if specs else (GroupSpec("full", block_size),)
    specs = tuple(replace(spec, block_size=spec.block_size * context_parallel) for spec in specs)
    if eagle and any(spec.kind == "chunked_local" for spec in specs):
        raise ValueError(
            "EAGLE and chunked local attention do not go together: a chunk's first token has no past to draft from"
        )
    if (eagle or merge) and any(spec.kept != "all" for spec in specs):
        raise ValueError("windows of which only the last is kept go neither with EAGLE nor with merging")
    alone = len(specs) == 1
    groups = tuple(
        make_group(spec, pool, number=None if alone else number, merge=merge, eagle=eagle)
        for number, spec in enumerate(specs)
    )
    sizes = [spec.block_size for spec in specs]
    hash_block_size = gcd(*sizes)
    for group in groups:
        group.hash_factor = group.block_size // hash_block_size
        group.step = lcm(*sizes)
    return groups, hash_block_size


def reusable(
    groups: Sequence[Searchable[Name, Found]], hashes: Sequence[Name], max_tokens: int, multiple: int = 1
) -> tuple[tuple[Sequence[Found], ...], int]:
    """Blocks of each group, and the tokens that they cover in every group: whole blocks, and a multiple of `multiple`.

    Each group may only shorten what the others found, so they are asked in turn until none does. For EAGLE every group must
    know one block more than is reused, whose content is computed again.
    """
    step = lcm(multiple, *(group.block_size for group in groups))
    if len(groups) == 1 and step == groups[0].block_size:
        group = groups[0]
        found = group.longest_hit(hashes, max_tokens // group.block_size)
        if group.eagle and found:
            found = found[:-1]
        return (found,), len(found) * group.block_size
    chains = [group.names(hashes) for group in groups]
    length = max_tokens // step * step
    while True:
        before = length
        blocks: list[list[Found]] = []
        for group, chain in zip(groups, chains, strict=True):
            found = group.longest_hit(chain, length // group.block_size + group.eagle)
            if group.eagle:
                found = found[:-1]
            length = min(length, len(found) * group.block_size // step * step)
            blocks.append(found)
        if length == before or length == 0:
            break
    cut = tuple(found[: length // group.block_size] for group, found in zip(groups, blocks, strict=True))
    return cut, length
