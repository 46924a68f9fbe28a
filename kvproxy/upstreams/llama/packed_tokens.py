"""Token ids as bytes, because the prefixes of many slots and files are compared for each request."""

from array import array
from collections.abc import Sequence
from typing import TypeAlias

Tokens: TypeAlias = bytes
"""Token ids, four bytes each."""
_WIDTH = array("i").itemsize


def pack(ids: Sequence[int]) -> Tokens:
    return array("i", ids).tobytes()


def unpack(tokens: Tokens) -> list[int]:
    return array("i", tokens).tolist()


def num_tokens(tokens: Tokens) -> int:
    return len(tokens) // _WIDTH


def first_tokens(tokens: Tokens, number: int) -> Tokens:
    return tokens[: number * _WIDTH]


def common_prefix_length(one: Tokens, other: Tokens) -> int:
    equal, differ = 0, min(len(one), len(other))
    if one[:differ] == other[:differ]:
        return differ // _WIDTH
    # Invariant: one[:equal] matches, one[:differ] does not.
    while differ - equal > 1:
        middle = (equal + differ) // 2
        if one[equal:middle] == other[equal:middle]:
            equal = middle
        else:
            differ = middle
    return equal // _WIDTH
