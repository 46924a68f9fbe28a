"""Estimates the probability that a neighbour's answer is wrong."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

# Computed by training/learned_prior.py from Banking77 (Casanueva et al. 2020, CC BY 4.0).
WEIGHTS = (-1.274, -0.31, 0.966, 0.864, 1.167, 1.125, 1.081)
COVARIANCE = (
    (3.947, 0.184, -0.789, 0.578, -0.17, -0.508, -2.241),
    (0.184, 3.232, -0.761, -0.103, -2.89, 0.554, 0.194),
    (-0.789, -0.761, 0.958, -0.454, 0.831, 0.035, -0.451),
    (0.578, -0.103, -0.454, 0.544, 0.03, -0.299, 0.501),
    (-0.17, -2.89, 0.831, 0.03, 3.095, -0.576, -0.361),
    (-0.508, 0.554, 0.035, -0.299, -0.576, 0.714, -0.532),
    (-2.241, 0.194, -0.451, 0.501, -0.361, -0.532, 3.763),
)
NUM_NEIGHBOURS = 24
FEATURES = ("constant", "cosine", "margin", "rivals", "density", "votes", "company")
_WEIGHT_DISTANCE = 0.05
_NEAREST = 5
_MAX_MARGIN = 5.0


def compute_features(cosines: Sequence[float], classes: Sequence[str]) -> np.ndarray:
    """Return the error model's inputs for the nearest of several neighbours, `[len(FEATURES)]`, scaled to about 1:

    - `cosine` of the nearest neighbour;
    - `margin`: difference to the cosine of the nearest neighbour of another class;
    - `rivals`: negative logarithm of the share of other classes among the neighbours, weighted by closeness;
    - `density`: mean cosine of the nearest five;
    - `votes`: share of the nearest neighbour's class among the nearest five;
    - `company`: whether another neighbour has the nearest neighbour's class.
    """
    near = np.asarray(cosines, dtype=np.float64)
    own = np.fromiter((name == classes[0] for name in classes), bool, len(classes))
    other = float(near[~own][0]) if not own.all() else float(near[-1])
    weights = np.exp((near - near[0]) / _WEIGHT_DISTANCE)
    rivals = float(weights[~own].sum() / weights.sum())
    return np.array(
        [
            1.0,
            (near[0] - 0.8) * 5,
            min((near[0] - other) * 10, _MAX_MARGIN),
            -np.log(rivals + 0.01) - 2,
            (near[:_NEAREST].mean() - 0.7) * 5,
            own[:_NEAREST].mean() * 2,
            float(own.sum() > 1),
        ]
    )


_MAX_OBSERVATION_WEIGHT = 8.0


@dataclass(slots=True)
class ErrorModel:
    """Estimates the probability that the nearest neighbour's answer is wrong, by Bayesian logistic regression.

    An answer is right with the probability `(1 - slips) * sigmoid(weights . features)`. `slips` is the share of random errors,
    which features cannot predict, such as a mistaken comparison: `num_random_errors / num_predictable`.
    """

    weights: np.ndarray
    covariance: np.ndarray
    num_random_errors: float = 0.5
    num_predictable: float = 1000.0

    def error_probability(self, features: np.ndarray) -> float:
        return 1 - (1 - self.num_random_errors / self.num_predictable) * _sigmoid(float(features @ self.weights))

    def learn(self, features: np.ndarray, right: bool, comparison_probability: float = 1.0) -> None:
        """Update the weights by one Newton step after a comparison, which had this probability to be made.

        An answer that the model expects to be wrong has little influence, because it would not be served.
        """
        probability = _sigmoid(float(features @ self.weights))
        slips = self.num_random_errors / self.num_predictable
        slip = 0.0 if right else slips * probability / (slips * probability + 1 - probability + 1e-12)
        self.num_random_errors += slip
        self.num_predictable += probability**2
        weight = (1 - slip) * probability**2 * min(1 / comparison_probability, _MAX_OBSERVATION_WEIGHT)
        curvature = probability * (1 - probability) * weight
        gain = self.covariance @ features
        self.covariance = self.covariance - np.outer(gain, gain) * (
            curvature / (1 + curvature * float(features @ gain))
        )
        self.weights = self.weights + self.covariance @ features * (weight * (float(right) - probability))


def _sigmoid(odds: float) -> float:
    return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0


PRIOR_ERRORS = 2.0
"""`ServingLevel.expected` of a new namespace. It is below `MIN_EXPECTED_ERRORS`, so each namespace needs comparisons."""


@dataclass(slots=True)
class ErrorModelPrior:
    """The initial error model of new namespaces, which learns from the `Observation`s of all namespaces.

    `seen_wrong` and `seen_expected` are sums of `ServingLevel.wrong` and `ServingLevel.expected` over all namespaces.
    """

    shared: ErrorModel = field(default_factory=lambda: ErrorModel(np.array(WEIGHTS), np.array(COVARIANCE)))
    seen_wrong: float = PRIOR_ERRORS
    seen_expected: float = PRIOR_ERRORS

    def error_model(self) -> ErrorModel:
        return ErrorModel(self.shared.weights.copy(), np.array(COVARIANCE))

    @property
    def initial_wrong_count(self) -> float:
        return PRIOR_ERRORS * max(1.0, self.seen_wrong / self.seen_expected)

    def learn(self, features: np.ndarray, error: float, right: bool, max_counted_error: float) -> None:
        self.shared.learn(features, right)
        if error <= max_counted_error:
            self.seen_wrong += not right
            self.seen_expected += error
