"""Clusters of questions that labelled pairs connect: held-out parts, and pairs that follow from the labels."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from kvproxy.index.evaluation.labelled_pairs import LabelledPair

_SHARES = 0.05, 0.07


@dataclass(frozen=True, slots=True)
class PairSplit:
    calibrate: list[LabelledPair]
    evaluate: list[LabelledPair]
    train: list[LabelledPair]


def hold_out(pairs: Sequence[LabelledPair]) -> PairSplit:
    """Split pairs for calibration (at most 5%), evaluation (7%), and training; always in the same way.

    Questions that a chain of pairs connects stay together.
    """
    clusters: dict[str, list[LabelledPair]] = {}
    cluster = cluster_of_questions(pairs)
    for pair in pairs:
        clusters.setdefault(cluster[pair.a], []).append(pair)
    order = list(clusters.values())
    random.Random(0).shuffle(order)
    parts: list[list[LabelledPair]] = [[], [], []]
    for members in order:
        # A cluster larger than a twentieth of a held-out part would dominate its results.
        fitting = (
            n
            for n, share in enumerate(_SHARES)
            if len(parts[n]) + len(members) <= share * len(pairs) and len(members) <= max(2, share * len(pairs) / 20)
        )
        parts[next(fitting, -1)].extend(members)
    return PairSplit(*parts)


def cluster_of_questions(pairs: Sequence[LabelledPair]) -> dict[str, str]:
    """Map each question to one question of its cluster. A chain of pairs connects all questions of a cluster."""
    parent: dict[str, str] = {}

    def find(text: str) -> str:
        parent.setdefault(text, text)
        while parent[text] != text:
            parent[text] = parent[parent[text]]
            text = parent[text]
        return text

    for pair in pairs:
        parent[find(pair.a)] = find(pair.b)
    return {text: find(text) for text in list(parent)}


MAX_CLUSTER = 8


def implied_pairs(pairs: Sequence[LabelledPair], max_cluster: int = MAX_CLUSTER) -> list[LabelledPair]:
    """Return the pairs that follow from labelled pairs and are not among them.

    If `a` and `b` have the same answer, and `b` and `c`, then `a` and `c` have it, too. If `c` and `d` differ, so do `a` and `d`.

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
