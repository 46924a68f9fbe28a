"""Pairs that follow from labelled pairs.

If `a` and `b` have the same answer, and `b` and `c`, then `a` and `c` have it, too. If `c` and `d` differ, so do `a` and `d`.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, product

from kvproxy.index.evaluation.labelled_pairs import LabelledPair
from training.verifier.splits import cluster_of_questions

MAX_CLUSTER = 8


def implied_pairs(pairs: Sequence[LabelledPair], max_cluster: int = MAX_CLUSTER) -> list[LabelledPair]:
    """Return the pairs that follow from labelled pairs and are not among them.

    Args:
        max_cluster: maximum number of questions with the same answer. In a larger cluster, a wrong label would spread too far.
    """
    cluster = cluster_of_questions([pair for pair in pairs if pair.same])
    members: dict[str, list[str]] = {}
    for text in dict.fromkeys(text for pair in pairs for text in (pair.a, pair.b)):
        members.setdefault(cluster.get(text, text), []).append(text)
    known = {_key(pair.a, pair.b) for pair in pairs}
    found: dict[tuple[str, str], LabelledPair] = {}

    def add(texts: Iterable[tuple[str, str]], same: bool) -> None:
        for a, b in texts:
            if _key(a, b) not in known:
                found.setdefault(_key(a, b), LabelledPair(a, b, same))

    for texts in members.values():
        if len(texts) <= max_cluster:
            add(combinations(texts, 2), True)
    for pair in pairs:
        one, other = cluster.get(pair.a, pair.a), cluster.get(pair.b, pair.b)
        if not pair.same and one != other and max(len(members[one]), len(members[other])) <= max_cluster:
            add(product(members[one], members[other]), False)
    return list(found.values())


def _key(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a < b else (b, a)
