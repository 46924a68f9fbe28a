"""Finds the first difference between a prompt and the cached chains."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_NUM_CONTEXT_TOKENS = 12
_SLICE = 16


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between a prompt and the most similar cached chain."""

    position: int  # Index of the first different token.
    cached: tuple[int, ...]  # Tokens of the chain, from `position` to the end of the block.
    prompt: tuple[int, ...]  # Tokens of the prompt, likewise.
    before: tuple[int, ...]  # The last common tokens before `position`.


def common_prefix_length(one: Sequence[object], other: Sequence[object]) -> int:
    if type(one) is not type(other):
        pairs = enumerate(zip(one, other, strict=False))
        return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))
    # Slices of one type are compared in C.
    equal, differ = 0, _SLICE
    while differ < min(len(one), len(other)) and one[equal:differ] == other[equal:differ]:
        equal, differ = differ, 2 * differ
    differ = min(differ, len(one), len(other))
    if one[equal:differ] == other[equal:differ]:
        return differ
    # Invariant: one[:equal] matches, one[:differ] does not.
    while differ - equal > 1:
        middle = (equal + differ) // 2
        if one[equal:middle] == other[equal:middle]:
            equal = middle
        else:
            differ = middle
    return equal


def reusable_tokens(common: int, prompt_tokens: int, block_size: int) -> int:
    """Return the tokens of a cached prefix of `common` tokens that a prompt reuses: whole blocks, and never the last token."""
    return max(0, min(common, prompt_tokens - 1)) // block_size * block_size


def find_divergence(
    tokens: Sequence[int], start: int, block_size: int, children: Iterable[Sequence[int]]
) -> Divergence | None:
    """Return the first difference between a prompt and the most similar cached chain; None without a difference.

    `children` are the tokens of each cached block after `tokens[:start]`, which is the prompt's cached prefix.
    """
    block = tokens[start : start + block_size]
    closest: Sequence[int] = ()
    longest = -1
    for child in children:
        common = common_prefix_length(child, block)
        if common > longest and len(child) > common:
            closest, longest = child, common
    if longest < 0 or longest == len(block):
        return None
    position = start + longest
    return Divergence(
        position,
        cached=tuple(closest[longest:]),
        prompt=tuple(block[longest:]),
        before=tuple(tokens[max(0, position - _NUM_CONTEXT_TOKENS) : position]),
    )
