"""Online logistic regression of the probability that an answer is right."""

import math
from dataclasses import dataclass

import numpy as np

_CAUTION = 0.25
"""Weight of the model's uncertainty, which lowers the probability."""


@dataclass(slots=True)
class ErrorModel:
    """Weights with their covariance, and the rate of random errors.

    The probability is `(1 - slips) * sigmoid(weights . features)`. Some answers differ for reasons that no feature shows, and
    judges err. Without `slips`, each such case would change the weights.

    Attributes:
        weights: `[n]`.
        covariance: `[n, n]`.
        slipped, sure: number of slips, and of sure answers.
    """

    weights: np.ndarray
    covariance: np.ndarray
    slipped: float = 0.5
    sure: float = 1000.0

    def error(self, features: np.ndarray) -> float:
        """Return the probability of being wrong."""
        odds = float(features @ self.weights)
        spread = float(features @ self.covariance @ features)
        right = _sigmoid(odds / math.sqrt(1 + _CAUTION * math.pi * spread / 8))
        return 1 - (1 - self.slipped / self.sure) * right

    def learn(self, features: np.ndarray, right: bool) -> None:
        """Update the weights by one Newton step.

        Observations with a low probability have little weight: the model must be accurate for answers that may be served.
        """
        probability = _sigmoid(float(features @ self.weights))
        slips = self.slipped / self.sure
        slip = 0.0 if right else slips * probability / (slips * probability + 1 - probability + 1e-12)
        self.slipped += slip
        self.sure += probability**2
        weight = (1 - slip) * probability**2
        curvature = probability * (1 - probability) * weight
        gain = self.covariance @ features
        self.covariance = self.covariance - np.outer(gain, gain) * (
            curvature / (1 + curvature * float(features @ gain))
        )
        self.weights = self.weights + self.covariance @ features * (weight * (float(right) - probability))


def _sigmoid(odds: float) -> float:
    return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0
