"""What is known before a namespace has shown anything: shared by all namespaces, and outgrown by each."""

from dataclasses import dataclass, field

import numpy as np

from kvproxy.index.policies.learned.error_model import Score

# Learned from two replays of Banking77 (10,003 questions of a bank's customers, Casanueva et al. 2020, CC BY 4.0) by
# tests/benchmarks/learned_prior.py: the weights, and their covariance as if they had been learned from 300 questions.
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
_WORTH = 2.0  # Expected errors that the prior stands for where the bound is asked; few, so that each namespace proves itself.


@dataclass(slots=True)
class Prior:
    """Weights that all namespaces teach.

    Attributes:
        shared: the score of all observations of all namespaces.
        seen_wrong, seen_expected: of all comparisons in reach; how far the errors were right elsewhere.
    """

    shared: Score = field(default_factory=lambda: Score(np.array(WEIGHTS), np.array(COVARIANCE)))
    seen_wrong: float = _WORTH
    seen_expected: float = _WORTH

    def score(self) -> Score:
        """The score that a namespace starts from: the shared weights, held as loosely as the shipped ones."""
        return Score(self.shared.weights.copy(), np.array(COVARIANCE))

    @property
    def expected(self) -> float:
        """Expected errors that a namespace starts from."""
        return _WORTH

    @property
    def wrong(self) -> float:
        """Errors seen against them."""
        return _WORTH * max(1.0, self.seen_wrong / self.seen_expected)

    def learn(self, features: np.ndarray, error: float, right: bool, reach: float) -> None:
        """Take in an observation of any namespace."""
        self.shared.learn(features, right)
        if error <= reach:
            self.seen_wrong += not right
            self.seen_expected += error
