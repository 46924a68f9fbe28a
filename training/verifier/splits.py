"""Splits labelled pairs so that no question stands in two parts."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvproxy.index.evaluation.labelled_pairs import Pair


def split_clusters(pairs: Sequence[Pair], shares: Sequence[float], seed: int = 0) -> list[list[Pair]]:
    """Deal pairs to parts so that questions joined by any chain of pairs stay together.

    Args:
        pairs: the pairs.
        shares: the share of all pairs that each part but the last gets; the last gets the rest.
        seed: of the shuffle.

    Returns:
        `len(shares) + 1` lists.
    """
    clusters: dict[str, list[Pair]] = {}
    root = components(pairs)
    for pair in pairs:
        clusters.setdefault(root[pair.a], []).append(pair)
    order = list(clusters.values())
    random.Random(seed).shuffle(order)
    parts: list[list[Pair]] = [[] for _ in range(len(shares) + 1)]
    for cluster in order:
        # A cluster larger than a twentieth of a held-out part would decide what is measured there.
        room = (
            n
            for n, share in enumerate(shares)
            if len(parts[n]) + len(cluster) <= share * len(pairs) and len(cluster) <= max(2, share * len(pairs) / 20)
        )
        parts[next(room, len(shares))].extend(cluster)
    return parts


def cluster_sizes(pairs: Sequence[Pair]) -> list[int]:
    """For each pair, how many of the pairs belong to its cluster."""
    root = components(pairs)
    size = Counter(root[pair.a] for pair in pairs)
    return [size[root[pair.a]] for pair in pairs]


def components(pairs: Sequence[Pair]) -> dict[str, str]:
    """Each question to the one that stands for all that any chain of the pairs joins with it."""
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
class Parts:
    """Pairs by use; no question stands in two of them."""

    calibrate: list[Pair]
    report: list[Pair]
    train: list[Pair]


def hold_out(pairs: Sequence[Pair]) -> Parts:
    """The split that training, calibration and report agree on: 5%, 7% and the rest, by cluster."""
    return Parts(*split_clusters(pairs, (0.05, 0.07)))
