"""Platt scaling of the verifier's logits."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class PlattScaling:
    """The probability is the sigmoid of `slope * logit + cosine * c + offset`, where `c` is the cosine of the embeddings."""

    slope: float
    offset: float
    cosine: float = 0.0

    def probabilities(self, logits: np.ndarray, cosines: np.ndarray | None = None) -> np.ndarray:
        """Return float32 `[n]` from logits and cosines `[n]`. The cosines may be None if their weight is 0."""
        weighted = 0.0 if cosines is None else self.cosine * cosines.astype(np.float64)
        exponent = np.clip(self.slope * logits.astype(np.float64) + weighted + self.offset, -30, 30)
        return (1 / (1 + np.exp(-exponent))).astype(np.float32)
