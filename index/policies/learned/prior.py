"""The prior of new namespaces, learned from all namespaces."""

from dataclasses import dataclass, field

import numpy as np

from kvproxy.index.policies.learned.error_model import ErrorModel

# ComparisonResult from two replays of Banking77 (10,003 questions of a bank's customers, Casanueva et al. 2020, CC BY 4.0) by
# tests/benchmarks/learned_prior.py: the weights, and their covariance scaled to 300 questions.
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
_WORTH = 2.0
"""Expected errors that the prior counts as; few, so that each namespace needs evidence of its own."""


@dataclass(slots=True)
class Prior:
    """Error model of all namespaces.

    Attributes:
        shared: model of all observations.
        seen_wrong, seen_expected: wrong answers, and their expected number, among comparisons with a small error.
    """

    shared: ErrorModel = field(default_factory=lambda: ErrorModel(np.array(WEIGHTS), np.array(COVARIANCE)))
    seen_wrong: float = _WORTH
    seen_expected: float = _WORTH

    def error_model(self) -> ErrorModel:
        """Return the model of a new namespace: the shared weights with the shipped covariance."""
        return ErrorModel(self.shared.weights.copy(), np.array(COVARIANCE))

    @property
    def expected(self) -> float:
        """Expected errors of a new namespace."""
        return _WORTH

    @property
    def wrong(self) -> float:
        """Wrong answers of a new namespace."""
        return _WORTH * max(1.0, self.seen_wrong / self.seen_expected)

    def learn(self, features: np.ndarray, error: float, right: bool, reach: float) -> None:
        self.shared.learn(features, right)
        if error <= reach:
            self.seen_wrong += not right
            self.seen_expected += error
