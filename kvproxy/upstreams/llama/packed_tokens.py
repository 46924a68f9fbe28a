"""Token ids packed into bytes, so that thousands of them are compared at once."""

from array import array
from collections.abc import Sequence
from typing import TypeAlias

Tokens: TypeAlias = bytes
"""Token ids, four bytes each."""
_WIDTH = array("i").itemsize


def pack(ids: Sequence[int]) -> Tokens:
    """Token ids as bytes; raises OverflowError for a number that is none."""
    return array("i", ids).tobytes()


def unpack(tokens: Tokens) -> list[int]:
    """The ids again."""
    return array("i", tokens).tolist()


def count(tokens: Tokens) -> int:
    """How many there are."""
    return len(tokens) // _WIDTH


def first(tokens: Tokens, number: int) -> Tokens:
    """The first few."""
    return tokens[: number * _WIDTH]


def shared(one: Tokens, other: Tokens) -> int:
    """How many tokens both begin with."""
    equal, differ = 0, min(len(one), len(other))
    if one[:differ] == other[:differ]:
        return differ // _WIDTH
    # one[:equal] is equal, one[:differ] is not.
    while differ - equal > 1:
        middle = (equal + differ) // 2
        if one[equal:middle] == other[equal:middle]:
            equal = middle
        else:
            differ = middle
    return equal // _WIDTH
