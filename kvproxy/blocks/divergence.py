"""Where a prompt leaves what is cached: for the embedded engine's pool and for mirrored ones."""

from collections.abc import Iterable, Sequence

from kvproxy.blocks.rows import Divergence

_BEFORE = 12
"""Shared tokens that are shown before the first one that differs."""


def find_divergence(
    tokens: Sequence[int], start: int, block_size: int, children: Iterable[Sequence[int]]
) -> Divergence | None:
    """Compare a prompt with the cached blocks that follow what it shares, and tell where it leaves the closest one.

    Args:
        tokens: the prompt.
        start: how many of its tokens are cached.
        block_size: tokens in a block.
        children: tokens of each cached block that follows the prompt's first `start` tokens.

    Returns:
        The first difference; None where no block follows, or the prompt ends inside one.
    """
    wanted = tokens[start : start + block_size]
    closest: Sequence[int] = ()
    shared = -1
    for child in children:
        same = _num_shared(child, wanted)
        if same > shared and len(child) > same:
            closest, shared = child, same
    if shared < 0 or shared == len(wanted):
        return None
    position = start + shared
    return Divergence(
        position,
        cached=tuple(closest[shared:]),
        prompt=tuple(wanted[shared:]),
        before=tuple(tokens[max(0, position - _BEFORE) : position]),
    )


def _num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences share from their beginning."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
