"""Pairs that labelled pairs imply: sameness is passed on, and so is its opposite to whatever is the same."""

import random
from collections.abc import Iterable, Sequence
from itertools import combinations, product

from kvproxy.index.evaluation.labelled_pairs import Pair
from training.verifier.splits import components

LARGEST = 8


def implied(pairs: Sequence[Pair], largest: int = LARGEST) -> list[Pair]:
    """Unlabelled pairs that follow from labelled ones.

    Two questions that a chain of pairs labelled the same joins are the same; a question that differs from one of them
    differs from all.

    Args:
        pairs: labelled pairs.
        largest: groups of more questions imply nothing, since one wrong label in a chain would make many wrong pairs.
    """
    root = components([pair for pair in pairs if pair.same])
    groups: dict[str, list[str]] = {}
    for text in dict.fromkeys(text for pair in pairs for text in (pair.a, pair.b)):
        groups.setdefault(root.get(text, text), []).append(text)
    known = {_key(pair.a, pair.b) for pair in pairs}
    found: dict[tuple[str, str], Pair] = {}
    for group in groups.values():
        if len(group) <= largest:
            _add(found, known, combinations(group, 2), True)
    for pair in pairs:
        one, other = root.get(pair.a, pair.a), root.get(pair.b, pair.b)
        if not pair.same and one != other and max(len(groups[one]), len(groups[other])) <= largest:
            _add(found, known, product(groups[one], groups[other]), False)
    return list(found.values())


def some(pairs: Sequence[Pair], number: int, seed: int) -> list[Pair]:
    """At most `number` of them."""
    return random.Random(seed).sample(pairs, min(number, len(pairs)))


def _key(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a < b else (b, a)


def _add(
    found: dict[tuple[str, str], Pair], known: set[tuple[str, str]], texts: Iterable[tuple[str, str]], same: bool
) -> None:
    for a, b in texts:
        key = _key(a, b)
        if key not in known:
            found.setdefault(key, Pair(a, b, same, "implied"))
