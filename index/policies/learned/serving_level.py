"""The level: how much error a single answer may have, so that all that are served keep to the bound."""

import math
from dataclasses import dataclass, field

import numpy as np

from kvproxy.index.policies.learned.error_bound import FROM, largest_factor, most_expected

_BINS = 64
_LEAST = 5e-4
_EDGES = np.geomspace(_LEAST, 1.0, _BINS)
_REMEMBERED = 1500.0  # Requests that the plan is made from.
# Answers ahead that the allowance is planned for. Tests simulate that what this spends is ever too much in 5% of cases at most.
_HORIZON = 500
_CHECKED_SHARE = 0.8
_SHARE = 1.1  # Of the bound, at most, that is planned to be used, so that what has been saved is spent slowly.
_REACH, _FARTHEST = 6.0, 0.15
_LEAST_FACTOR = 0.5
_HIGHEST = 0.25
_JUDGE_SLIPS, _JUDGE_REPEATS = 1.0, 50.0  # A judge of whom nothing is known errs in 2% of comparisons.
_TIMES = 5.0  # The error of a single answer, at most, as a multiple of the bound.


@dataclass(slots=True)
class Level:
    """What was served and seen of the traffic of one namespace, and what may be served next.

    Attributes:
        max_error: the bound.
        served, risk: answers served, and the sum of their errors as expected.
        wrong, expected: comparisons that were wrong among those in reach of being served, and how many were expected.
        repeats, slips: comparisons where the question was the same, and those that were judged different: what the judge errs.
        factor: the largest by which the errors may have been underestimated.
        level: the largest error of an answer that may be served; 0 serves nothing.
        spread: `[64]` how many requests came with what error, newer ones counting more.
    """

    max_error: float
    served: int = 0
    risk: float = 0.0
    wrong: float = 0.0
    expected: float = 0.0
    repeats: int = 0
    slips: int = 0
    factor: float = math.inf
    level: float = 0.0
    spread: np.ndarray = field(default_factory=lambda: np.zeros(_BINS))

    @property
    def reach(self) -> float:
        """The largest error of comparisons that tell whether the errors are right."""
        return min(_FARTHEST, _REACH * self.max_error)

    @property
    def bound(self) -> float:
        """The largest share of wrong answers among those served that what was seen leaves possible; 0 before any is served."""
        return self.expected_share(self.served) if self.served else 0.0

    @property
    def through(self) -> float:
        """The share of recent requests with a neighbour that the level lets through."""
        total = float(self.spread.sum())
        return float(self.spread[self.level >= _EDGES].sum()) / total if total else 0.0

    def expected_share(self, answers: int) -> float:
        """The bound in force after so many answers: the least allowance that covers the risk taken."""
        risk = self.risk * min(self.factor, 1e6)
        allowed = 0
        while allowed < answers and most_expected(allowed) < risk:
            allowed += max(1, allowed // 50)
        return min(1.0, allowed / max(answers, FROM))

    def affords(self, error: float) -> bool:
        """Whether one more answer with such an error is within the part of the allowance that `checked` may use."""
        return self.risk + error <= _CHECKED_SHARE * most_expected(self.max_error * max(self.served, FROM))

    def serve(self, answers: int, risk: float) -> None:
        """Answers were served, with so much error in sum."""
        self.served += answers
        self.risk += risk

    def see(self, error: float, chance: float, right: bool, counted: bool) -> None:
        """A request was compared that was expected to be wrong with a probability. It counts from the next `settle` on.

        Args:
            chance: with which it was compared rather than served.
            counted: whether it is of the kind that is served by its score.
        """
        if counted and error <= self.reach:
            self.wrong += not right
            self.expected += error
        self.spread *= 1 - 1 / _REMEMBERED
        self.spread[min(int(np.searchsorted(_EDGES, error)), _BINS - 1)] += 1 / chance

    def settle(self) -> None:
        """Choose the level by all that was seen and served."""
        # Also after what is not counted: where it repeats a question, it tells of the judge.
        self.measure()
        self.plan()

    @property
    def judge_error(self) -> float:
        """The share of comparisons that the judge gets wrong, from questions that were asked again."""
        return (_JUDGE_SLIPS + self.slips) / (_JUDGE_REPEATS + self.repeats)

    def measure(self) -> None:
        """Bound the factor by what was seen; as many wrong answers as the judge errs were called right."""
        factor = largest_factor(self.wrong, self.expected) if self.expected else math.inf
        self.factor = factor / (1 - min(self.judge_error, 0.5))

    def planned(self) -> float:
        """The risk that the next answers may take on average, so that the allowance of those to come is used and no more."""
        if self.factor == math.inf:
            return 0.0
        allowed = most_expected(self.max_error * max(self.served + _HORIZON, FROM))
        left = (allowed - self.risk * self.factor) / _HORIZON
        return max(0.0, min(left, _SHARE * self.max_error)) / max(self.factor, _LEAST_FACTOR)

    def plan(self) -> None:
        """Choose the level so that what is served takes the planned risk on average."""
        total = np.cumsum(self.spread)
        mean = np.cumsum(self.spread * _EDGES) / np.maximum(total, 1e-12)
        within = np.flatnonzero((mean <= self.planned()) & (total > 0))
        highest = min(_HIGHEST, _TIMES * self.max_error)
        self.level = min(highest, float(_EDGES[within[-1]])) if len(within) else 0.0
