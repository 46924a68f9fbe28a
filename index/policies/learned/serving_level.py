"""The largest estimated error of a served answer, such that all served answers keep to the bound."""

import math
from dataclasses import dataclass, field

import numpy as np

from kvproxy.index.policies.learned.error_bound import FROM, largest_factor, most_expected

_BINS = 64
_LEAST = 5e-4
_EDGES = np.geomspace(_LEAST, 1.0, _BINS)
_WINDOW = 1500.0
"""Number of recent requests that the plan is based on."""
_HORIZON = 500
"""Future answers in the plan. Tests simulate that it exceeds the bound in 5% of cases at most."""
_CHECKED_SHARE = 0.8
_SHARE = 1.1
"""Largest planned share of the bound, so that saved risk is used slowly."""
_REACH, _FARTHEST = 6.0, 0.15
_LEAST_FACTOR = 0.5
_HIGHEST = 0.25
_JUDGE_SLIPS, _JUDGE_REPEATS = 1.0, 50.0
"""The prior of a judge: it errs in 2% of comparisons."""
_TIMES = 5.0
"""Largest error of a single answer, as a multiple of the bound."""


@dataclass(slots=True)
class ServingLevel:
    """Served answers and comparisons of one namespace, and the limit for the next answers.

    Attributes:
        served, risk: served answers, and the sum of their estimated errors.
        wrong, expected: wrong comparisons within reach, and their expected number.
        repeats, slips: comparisons of equal questions, and those judged different.
        factor: the largest factor by which errors may be underestimated.
        limit: largest error of a served answer; 0 serves nothing.
        spread: `[64]` decaying histogram of the errors of requests.
    """

    max_error: float
    served: int = 0
    risk: float = 0.0
    wrong: float = 0.0
    expected: float = 0.0
    repeats: int = 0
    slips: int = 0
    factor: float = math.inf
    limit: float = 0.0
    spread: np.ndarray = field(default_factory=lambda: np.zeros(_BINS))

    @property
    def reach(self) -> float:
        """Largest error of the comparisons that test the estimates."""
        return min(_FARTHEST, _REACH * self.max_error)

    @property
    def bound(self) -> float:
        """Upper bound of the share of wrong answers among those served."""
        return self.expected_share(self.served) if self.served else 0.0

    @property
    def acceptable_share(self) -> float:
        """Share of recent requests with a neighbour whose estimated error is within the limit."""
        total = float(self.spread.sum())
        return float(self.spread[self.limit >= _EDGES].sum()) / total if total else 0.0

    def expected_share(self, answers: int) -> float:
        """The bound after a number of answers: the least allowance that covers the risk."""
        risk = self.risk * min(self.factor, 1e6)
        allowed = 0
        while allowed < answers and most_expected(allowed) < risk:
            allowed += max(1, allowed // 50)
        return min(1.0, allowed / max(answers, FROM))

    def affords(self, error: float) -> bool:
        """Whether `checked` may serve one more answer with such an error."""
        return self.risk + error <= _CHECKED_SHARE * most_expected(self.max_error * max(self.served, FROM))

    def add_served(self, answers: int, risk: float) -> None:
        self.served += answers
        self.risk += risk

    def add_comparison(self, error: float, chance: float, right: bool, counted: bool) -> None:
        """Add a comparison; call `update` after the last one.

        Args:
            chance: probability of a comparison instead of a hit.
            counted: no veto stands.
        """
        if counted and error <= self.reach:
            self.wrong += not right
            self.expected += error
        self.spread *= 1 - 1 / _WINDOW
        self.spread[min(int(np.searchsorted(_EDGES, error)), _BINS - 1)] += 1 / chance

    def update(self) -> None:
        self.update_factor()
        self.update_limit()

    @property
    def judge_error(self) -> float:
        """Share of repeated questions whose two responses the comparison calls different."""
        return (_JUDGE_SLIPS + self.slips) / (_JUDGE_REPEATS + self.repeats)

    def update_factor(self) -> None:
        """Correct the factor for the share of wrong answers that the comparison calls right."""
        factor = largest_factor(self.wrong, self.expected) if self.expected else math.inf
        self.factor = factor / (1 - min(self.judge_error, 0.5))

    def planned_risk(self) -> float:
        """Mean risk of the next answers that uses the allowance."""
        if self.factor == math.inf:
            return 0.0
        allowed = most_expected(self.max_error * max(self.served + _HORIZON, FROM))
        left = (allowed - self.risk * self.factor) / _HORIZON
        return max(0.0, min(left, _SHARE * self.max_error)) / max(self.factor, _LEAST_FACTOR)

    def update_limit(self) -> None:
        """Served answers have the planned risk on average."""
        total = np.cumsum(self.spread)
        mean = np.cumsum(self.spread * _EDGES) / np.maximum(total, 1e-12)
        within = np.flatnonzero((mean <= self.planned_risk()) & (total > 0))
        highest = min(_HIGHEST, _TIMES * self.max_error)
        self.limit = min(highest, float(_EDGES[within[-1]])) if len(within) else 0.0
