import math
from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from kvproxy.index.policies.learned.error_bound import MIN_SERVED, max_error_factor, max_expected_events, max_risk

_BINS = 64
_LEAST = 5e-4
_EDGES = np.geomspace(_LEAST, 1.0, _BINS)
_HISTOGRAM_DECAY = 1500.0
_PLANNED_ANSWERS = 500
_CHECKED_SHARE = 0.8
_MAX_PLANNED_FACTOR = 1.5
_TESTED, _MAX_TESTED_ERROR = 6.0, 0.15
_LEAST_FACTOR = 0.5
_HIGHEST = 0.25
_PRIOR_JUDGE_ERRORS, _PRIOR_REPEATS = 1.0, 50.0
_MAX_LIMIT_FACTOR = 12.0


@dataclass(slots=True)
class ServingLevel:
    """The maximum estimated error of served answers in one namespace, and the counts from which it is computed.

    A comparison checks a stored answer against a fresh answer to the same request.

    Attributes:
        max_error: maximum share of wrong answers.
        served, risk: number of served answers, and the sum of their estimated errors.
        wrong, expected: number of wrong answers in comparisons, and the sum of the estimated errors. Only comparisons with an
            estimated error up to `max_tested_error` count.
        num_repeats, num_judged_different: comparisons of answers to equal questions, and how many found different answers; they
            measure how often a comparison errs.
        factor: the true errors are at most the estimated errors times this factor; see `max_error_factor`.
        limit: maximum estimated error of a served answer; 0 serves no answer.
        error_histogram: numbers of requests by estimated error, `[64]`; older requests count less.
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
    def max_tested_error(self) -> float:
        return min(_MAX_TESTED_ERROR, _TESTED * self.max_error)

    @property
    def most_wrong(self) -> int:
        """An upper bound, with 90% probability, of the number of wrong answers among the served answers."""
        risk = self.risk / (1 - self.comparison_error_rate)
        return bisect_left(
            range(self.served), True, key=lambda wrong: max_risk(wrong, self.wrong, self.expected) >= risk
        )

    @property
    def share_within_limit(self) -> float:
        total = float(self.error_histogram.sum())
        return float(self.error_histogram[self.limit >= _EDGES].sum()) / total if total else 0.0

    def bound_allows(self, error: float) -> bool:
        """Whether `max_error` allows the policy `checked` to serve one more answer with this estimated error."""
        return self.risk + error <= _CHECKED_SHARE * max_expected_events(self.max_error * max(self.served, MIN_SERVED))

    def add_served(self, answers: int, risk: float) -> None:
        if answers:
            self.served += answers
            self.risk += risk
            self._add_requests(risk / answers, answers)

    def add_comparison(self, error: float, right: bool) -> None:
        if error <= self.max_tested_error:
            self.wrong += not right
            self.expected += error
        self._add_requests(error, 1)

    def _add_requests(self, error: float, count: int) -> None:
        self.error_histogram *= (1 - 1 / _HISTOGRAM_DECAY) ** count
        self.error_histogram[min(int(np.searchsorted(_EDGES, error)), _BINS - 1)] += count

    @property
    def comparison_error_rate(self) -> float:
        """The probability that a comparison of answers errs, at most 0.5, estimated from comparisons between equal questions."""
        return min(0.5, (_PRIOR_JUDGE_ERRORS + self.num_judged_different) / (_PRIOR_REPEATS + self.num_repeats))

    def update(self) -> None:
        self.update_factor()
        self.update_limit()

    def update_factor(self) -> None:
        self.factor = max_error_factor(self.wrong, self.expected) / (1 - self.comparison_error_rate)

    def planned_risk(self) -> float:
        """Return the highest mean estimated error of the next 500 served answers that `max_error` allows."""
        if not self.expected:
            return 0.0
        allowed = max_risk(self.max_error * max(self.served + _PLANNED_ANSWERS, MIN_SERVED), self.wrong, self.expected)
        left = (allowed * (1 - self.comparison_error_rate) - self.risk) / _PLANNED_ANSWERS
        return max(
            0.0, min(left, _MAX_PLANNED_FACTOR * self.max_error / max(self.wrong / self.expected, _LEAST_FACTOR))
        )

    def update_limit(self) -> None:
        total = np.cumsum(self.error_histogram)
        mean = np.cumsum(self.error_histogram * _EDGES) / np.maximum(total, 1e-12)
        within = np.flatnonzero((mean <= self.planned_risk()) & (total > 0))
        highest = min(_HIGHEST, _MAX_LIMIT_FACTOR * self.max_error)
        self.limit = min(highest, float(_EDGES[within[-1]])) if len(within) else 0.0
