import random
from collections.abc import Sequence
from dataclasses import dataclass

from kvproxy.index.evaluation.labelled_pairs import LabelledPair

_CALIBRATE, _EVALUATE = 0.05, 0.07


def split_clusters(pairs: Sequence[LabelledPair], shares: Sequence[float], seed: int = 0) -> list[list[LabelledPair]]:
    """Split pairs into `len(shares) + 1` parts. Questions that a chain of pairs connects stay together.

    Args:
        shares: maximum share of all pairs in each part but the last, which gets the rest.
    """
    clusters: dict[str, list[LabelledPair]] = {}
    cluster = cluster_of_questions(pairs)
    for pair in pairs:
        clusters.setdefault(cluster[pair.a], []).append(pair)
    order = list(clusters.values())
    random.Random(seed).shuffle(order)
    parts: list[list[LabelledPair]] = [[] for _ in range(len(shares) + 1)]
    for members in order:
        # A cluster larger than a twentieth of a held-out part would dominate its results.
        fitting = (
            n
            for n, share in enumerate(shares)
            if len(parts[n]) + len(members) <= share * len(pairs) and len(members) <= max(2, share * len(pairs) / 20)
        )
        parts[next(fitting, len(shares))].extend(members)
    return parts


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


@dataclass(frozen=True, slots=True)
class PairSplit:
    calibrate: list[LabelledPair]
    evaluate: list[LabelledPair]
    train: list[LabelledPair]


def hold_out(pairs: Sequence[LabelledPair]) -> PairSplit:
    """Split pairs for calibration (5%), evaluation (7%), and training; always in the same way."""
    return PairSplit(*split_clusters(pairs, (_CALIBRATE, _EVALUATE)))
