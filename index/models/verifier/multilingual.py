from collections.abc import Sequence

import numpy as np

from kvproxy.index.models.content_words import is_surely_english, new_words
from kvproxy.index.models.verifier.built_in import BuiltInVerifier

_SAME_WORDS = 0.95


class MultilingualVerifier:
    """Scores English pairs with the built-in verifier. Other pairs score 0.95 if their content words are equal, or else 0."""

    def __init__(self, english: BuiltInVerifier) -> None:
        self.name = f"{english.name}-words"
        self._english = english

    def can_read(self, text: str) -> bool:
        return True

    def score(self, pairs: Sequence[tuple[str, str]], cosines: np.ndarray) -> np.ndarray:
        return np.concatenate([self._score_pair(*each) for each in zip(pairs, cosines, strict=True)] or [np.zeros(0)])

    def _score_pair(self, pair: tuple[str, str], cosine: float) -> np.ndarray:
        if all(map(is_surely_english, pair)):
            return self._english.score([pair], np.array([cosine]))
        one, other = pair
        same = not new_words(one, [other]) and not new_words(other, [one])
        return np.array([_SAME_WORDS if same else 0.0], dtype=np.float32)
