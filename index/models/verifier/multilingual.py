"""The verifier for the multilingual embedder."""

from collections.abc import Sequence

import numpy as np

from kvproxy.index.models.content_words import have_same_words, is_surely_english
from kvproxy.index.models.verifier.built_in import BuiltInVerifier

_SAME_WORDS = 0.95


class MultilingualVerifier:
    """Scores English pairs with the built-in verifier, and other pairs by their words.

    A pair with the same words, apart from those that do not change an answer, has the probability 0.95, any other 0.
    """

    def __init__(self, english: BuiltInVerifier) -> None:
        self.name = f"{english.name}-words"
        self._english = english

    def can_read(self, text: str) -> bool:
        return True

    def score(self, pairs: Sequence[tuple[str, str]], cosines: np.ndarray) -> np.ndarray:
        are_english = np.array([all(map(is_surely_english, pair)) for pair in pairs], dtype=bool)
        scores = np.array([_SAME_WORDS * have_same_words(*pair) for pair in pairs], dtype=np.float32)
        english = [pair for pair, is_english in zip(pairs, are_english, strict=True) if is_english]
        if english:
            scores[are_english] = self._english.score(english, cosines[are_english])
        return scores
