"""What is known before a namespace has shown anything: shared by all namespaces, and outgrown by each."""

from dataclasses import dataclass, field

import numpy as np

from kvproxy.index.learned.score import Score

# Learned from two replays of Banking77 (10,003 questions of a bank's customers, Casanueva et al. 2020, CC BY 4.0) by
# tests/benchmarks/learned_prior.py: the weights, and their covariance as if they had been learned from 300 questions.
WEIGHTS = (-1.213, -0.132, 1.072, 0.859, 0.869, 1.073, 1.113)
COVARIANCE = (
    (4.054, 0.216, -0.857, 0.594, -0.154, -0.517, -2.291),
    (0.216, 3.581, -0.84, -0.108, -3.235, 0.616, 0.223),
    (-0.857, -0.84, 1.02, -0.466, 0.898, 0.032, -0.439),
    (0.594, -0.108, -0.466, 0.558, 0.032, -0.311, 0.516),
    (-0.154, -3.235, 0.898, 0.032, 3.415, -0.649, -0.4),
    (-0.517, 0.616, 0.032, -0.311, -0.649, 0.731, -0.533),
    (-2.291, 0.223, -0.439, 0.516, -0.4, -0.533, 3.828),
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
