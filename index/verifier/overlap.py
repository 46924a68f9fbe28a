"""A test double: two questions are the same as far as they share words."""

import re
from collections.abc import Sequence

import numpy as np

_WORD = re.compile(r"\w+")


class OverlapVerifier:
    """Scores a pair by the share of its words that both have (Jaccard): always the same, in either order."""

    name = "overlap"

    def score(self, pairs: Sequence[tuple[str, str]], cosines: np.ndarray | None = None) -> np.ndarray:
        return np.array([_overlap(one, other) for one, other in pairs], dtype=np.float32)


def _overlap(one: str, other: str) -> float:
    ours, theirs = (set(_WORD.findall(text.lower())) for text in (one, other))
    return len(ours & theirs) / len(ours | theirs) if ours | theirs else 1.0
