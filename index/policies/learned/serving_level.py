"""The largest estimated error of a served answer, such that all served answers keep to the bound."""

import math
from dataclasses import dataclass, field

import numpy as np

from kvproxy.index.policies.learned.error_bound import FROM, max_error_factor, max_expected_events, max_risk

_BINS = 64
_LEAST = 5e-4
_EDGES = np.geomspace(_LEAST, 1.0, _BINS)
_WINDOW = 1500.0
"""Number of recent requests that the plan is based on."""
_HORIZON = 500
"""Future answers in the plan. Tests simulate that it exceeds the bound in 10% of cases at most."""
_CHECKED_SHARE = 0.8
_SHARE = 1.5
"""Largest planned share of the bound, so that saved risk is used slowly."""
_REACH, _FARTHEST = 6.0, 0.15
_LEAST_FACTOR = 0.5
_HIGHEST = 0.25
_JUDGE_SLIPS, _JUDGE_REPEATS = 1.0, 50.0
"""The prior of a judge: it errs in 2% of comparisons."""
_TIMES = 12.0
"""Largest error of a single answer, as a multiple of the bound."""


@dataclass(slots=True)
class ServingLevel:
    """The limit of the estimated error in one namespace, and the counts that determine it.

    Attributes:
        served, risk: number of served answers, and the sum of their estimated errors.
        wrong, expected: wrong answers among comparisons within `reach`, and their expected number.
        num_repeats, num_judged_different: comparisons of equal questions, and those that judged the answers different.
        factor: the largest factor by which errors may be underestimated.
        limit: largest estimated error of a served answer; 0 serves no answer.
        error_histogram: `[64]` decaying histogram of the estimated errors of requests.
    """

    max_error: float
    served: int = 0
    risk: float = 0.0
    wrong: float = 0.0
    expected: float = 0.0
    num_repeats: int = 0
    num_judged_different: int = 0
    factor: float = math.inf
    limit: float = 0.0
    error_histogram: np.ndarray = field(default_factory=lambda: np.zeros(_BINS))

    @property
    def reach(self) -> float:
        """Return the largest estimated error of the comparisons that test the estimates."""
        return min(_FARTHEST, _REACH * self.max_error)

    @property
    def bound(self) -> float:
        """Return an upper bound of the share of wrong answers among the served ones."""
        return self.expected_share(self.served) if self.served else 0.0

    @property
    def acceptable_share(self) -> float:
        """Return the share of recent requests with a neighbour whose estimated error is within the limit."""
        total = float(self.error_histogram.sum())
        return float(self.error_histogram[self.limit >= _EDGES].sum()) / total if total else 0.0

    def expected_share(self, answers: int) -> float:
        """Return the expected share of wrong answers among `answers` served ones."""
        risk = self.risk / (1 - self.judge_error)
        least, most = 0, answers
        while least < most:
            middle = (least + most) // 2
            if max_risk(middle, self.wrong, self.expected) < risk:
                least = middle + 1
            else:
                most = middle
        return min(1.0, least / max(answers, FROM))

    def can_afford(self, error: float) -> bool:
        """Whether `checked` may serve another answer with this estimated error."""
        return self.risk + error <= _CHECKED_SHARE * max_expected_events(self.max_error * max(self.served, FROM))

    def add_served(self, answers: int, risk: float) -> None:
        if answers:
            self.served += answers
            self.risk += risk
            self._add_requests(risk / answers, answers)

    def add_comparison(self, error: float, right: bool) -> None:
        """Add a comparison. After a series of calls, the caller must call `update`."""
        if error <= self.reach:
            self.wrong += not right
            self.expected += error
        self._add_requests(error, 1)

    def _add_requests(self, error: float, count: int) -> None:
        self.error_histogram *= (1 - 1 / _WINDOW) ** count
        self.error_histogram[min(int(np.searchsorted(_EDGES, error)), _BINS - 1)] += count

    @property
    def judge_error(self) -> float:
        """Return the estimated share of equal answers that the comparison judges different, at most 0.5.

        The share for different answers is assumed to be the same.
        """
        return min(0.5, (_JUDGE_SLIPS + self.num_judged_different) / (_JUDGE_REPEATS + self.num_repeats))

    def update(self) -> None:
        self.update_factor()
        self.update_limit()

    def update_factor(self) -> None:
        self.factor = max_error_factor(self.wrong, self.expected) / (1 - self.judge_error)

    def planned_risk(self) -> float:
        """Return the mean estimated error that the next answers may have within the bound."""
        if not self.expected:
            return 0.0
        allowed = max_risk(self.max_error * max(self.served + _HORIZON, FROM), self.wrong, self.expected)
        left = (allowed * (1 - self.judge_error) - self.risk) / _HORIZON
        return max(0.0, min(left, _SHARE * self.max_error / max(self.wrong / self.expected, _LEAST_FACTOR)))

    def update_limit(self) -> None:
        """Set the limit so that the mean estimated error of served answers is the planned risk."""
        total = np.cumsum(self.error_histogram)
        mean = np.cumsum(self.error_histogram * _EDGES) / np.maximum(total, 1e-12)
        within = np.flatnonzero((mean <= self.planned_risk()) & (total > 0))
        highest = min(_HIGHEST, _TIMES * self.max_error)
        self.limit = min(highest, float(_EDGES[within[-1]])) if len(within) else 0.0
