"""The probability that an answer is right, by logistic regression that learns one observation at a time."""

import math
from dataclasses import dataclass

import numpy as np

# How much of the weights' uncertainty is counted against an answer.
_CAUTION = 0.25


@dataclass(slots=True)
class Score:
    """Weights, what is known of them, and how often even a sure answer is seen wrong.

    The probability is `(1 - slips) * sigmoid(weights . features)`. Answers differ now and then for no reason that the features
    know, and judges err: without `slips` each such case would shake the weights.

    Attributes:
        weights: `[n]`.
        covariance: `[n, n]`, of the weights.
        slipped, sure: observed slips, and the observations of sure answers among which they were.
    """

    weights: np.ndarray
    covariance: np.ndarray
    slipped: float = 0.5
    sure: float = 1000.0

    def error(self, features: np.ndarray) -> float:
        """The probability of being wrong."""
        odds = float(features @ self.weights)
        spread = float(features @ self.covariance @ features)
        right = _sigmoid(odds / math.sqrt(1 + _CAUTION * math.pi * spread / 8))
        return 1 - (1 - self.slipped / self.sure) * right

    def learn(self, features: np.ndarray, right: bool) -> None:
        """Take in an observation: one Newton step.

        What is far from being served counts little, so that the fit is best where it decides.
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
