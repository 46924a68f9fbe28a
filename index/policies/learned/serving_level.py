"""Bounds of the number of wrong answers that hold at all times with 90% probability, in any order of the requests.

A wrong answer is an event. Its true probability is its estimated probability times a factor f, which is unknown and common to
all answers. Let x be the sum of all estimates, and w the number of events. Then `r^w * exp((1 - r) f x)` is a supermartingale
for every ratio r, and so is its mean over a distribution of ratios: above 1 for served answers, below 1 for comparisons. The
product of both means is a supermartingale, too. By Ville's inequality, it exceeds 10 at any time with at most 10% probability.
The bound is the largest number of wrong answers for which some factor f keeps the product at 10 or less.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

MIN_SERVED = 500
"""The allowed number of wrong answers is `max_error * max(served, MIN_SERVED)`."""
_LOG_LIMIT = math.log(10)
# Shape and rate of gamma distributions, for about 5, 20, and 100 allowed events.
_SERVED_RATIOS = ((4.0, 1.3), (16.0, 9.4), (49.0, 35.0))
_COMPARED_RATIOS = (40.0, 52.0)
_MOST = 1e4
_UNIT = np.linspace(0.0, 1.0, 250)


def max_expected_events(allowed_events: float) -> float:
    """Return the largest sum of the probabilities of events of which at most `allowed_events` occur, with a confidence of 90%."""
    return float(_max_expected(allowed_events, np.array([_LOG_LIMIT]))[0])


def max_risk(allowed_wrong: float, wrong: float, expected: float) -> float:
    """Return the largest sum of estimated errors of served answers for which at most `allowed_wrong` are wrong, for any factor f.

    `wrong` answers in comparisons had estimated errors with the sum `expected`.
    """
    if expected <= 0:
        return 0.0
    true, needed = _needed_evidence(wrong)
    return float((_max_expected(allowed_wrong, needed) / true).min() * expected)


def max_error_factor(wrong: float, expected: float) -> float:
    """Return the largest factor f (see the module) that the comparisons do not rule out; see `max_risk` for the arguments."""
    if expected <= 0:
        return _MOST
    true = np.maximum(_possible_events(wrong), wrong)
    return min(_MOST, float(np.interp(_LOG_LIMIT, _log_evidence(true, wrong, *_COMPARED_RATIOS), true)) / expected)


@lru_cache(maxsize=16)
def _needed_evidence(wrong: float) -> tuple[np.ndarray, np.ndarray]:
    true = _possible_events(wrong)
    return true, _LOG_LIMIT - _log_evidence(true, wrong, *_COMPARED_RATIOS)


def _possible_events(wrong: float) -> np.ndarray:
    least, most = max(wrong, 1.0) / 2, (wrong + 15) * 5
    return least * np.exp(_UNIT * math.log(most / least))


def _max_expected(allowed: float, needed: np.ndarray) -> np.ndarray:
    if allowed <= 0:
        return np.zeros_like(needed)
    expected, evidence = _served_evidence(math.floor(allowed + 1e-9) + 1)
    most_expected: np.ndarray = np.interp(needed, evidence, expected, left=np.inf, right=0.0)
    return most_expected


@lru_cache(maxsize=256)
def _served_evidence(count: int) -> tuple[np.ndarray, np.ndarray]:
    expected = np.linspace(0.0, count, 400)[1:]
    parts = [_log_evidence(expected, count, *ratios) for ratios in _SERVED_RATIOS]
    evidence = np.logaddexp.reduce(parts) - math.log(len(parts))
    return expected[::-1], evidence[::-1]


def _log_evidence(expected: np.ndarray, count: float, shape: float, rate: float) -> np.ndarray:
    constant = shape * math.log(rate) - math.lgamma(shape) + math.lgamma(shape + count)
    evidence: np.ndarray = expected + constant - (shape + count) * np.log(rate + expected)
    return evidence


_BINS = 64
_LEAST = 5e-4
_EDGES = np.geomspace(_LEAST, 1.0, _BINS)
_HISTOGRAM_DECAY = 1500.0
COMPARISON_DECAY = 1 - 1 / 1500
_PLANNED_ANSWERS, _PLANNED_SHARE = 500, 0.7
_CHECKED_SHARE = 0.8
_MAX_PLANNED_FACTOR = 1.5
_COUNTED_FACTOR, _MAX_COUNTED_ERROR = 6.0, 0.15
_LEAST_FACTOR = 0.5
_EARNED_SHARE = 0.6
_CHANGE_DEVIATIONS = 3.0
_HIGHEST = 0.25
_PRIOR_AUDITS = 20.0
_PRIOR_JUDGE_ERRORS, _PRIOR_REPEATS = 1.0, 50.0
_MAX_LIMIT_FACTOR = 3.0


@dataclass(slots=True)
class ServingLevel:
    """The maximum estimated error of served answers in one namespace, and the counts from which it is computed.

    The error of an answer is the probability that it is wrong; `ErrorModel` estimates it.

    Attributes:
        max_error: maximum share of wrong answers.
        served, risk: number of served answers, and the sum of their estimated errors, without answers that `checked` accepted.
        num_compared: number of the comparisons that `wrong` and `expected` count.
        audits: numbers of comparisons of facts that a model judged, too, by the results of both, `[2, 2]`.
        changed_wrong, changed_expected: parts of `wrong` and `expected` that are probably due to changed answers.
        wrong_by_change, change_variance: expected number of answers that were served after a change, and its variance.
        expected_by_change: sum of the probabilities of a change that were known when answers were served.
        num_changes: see `ChangeHistory`.
        checked_risk: the same sum for those, at the error of `checked` as it is estimated now.
        wrong, expected: number of wrong answers in comparisons, and the sum of the estimated errors. Only comparisons with an
            estimated error up to `max_counted_error` count: larger errors say little about served answers.
        num_repeats, num_judged_different: comparisons of answers to equal questions, and how many found different answers; they
            measure how often a comparison errs.
        error_factor: the true errors are at most the estimated errors times this factor; see `max_error_factor`.
        error_limit: maximum estimated error of a served answer; 0 serves no answer.
        error_histogram: numbers of requests by estimated error, `[64]`; older requests count less.
    """

    max_error: float
    served: int = 0
    risk: float = 0.0
    wrong: float = 0.0
    expected: float = 0.0
    num_repeats: int = 0
    num_judged_different: int = 0
    error_factor: float = math.inf
    error_limit: float = 0.0
    error_histogram: np.ndarray = field(default_factory=lambda: np.zeros(_BINS))
    checked_risk: float = 0.0
    changed_wrong: float = 0.0
    changed_expected: float = 0.0
    wrong_by_change: float = 0.0
    change_variance: float = 0.0
    expected_by_change: float = 0.0
    num_changes: float = 0.0
    num_compared: float = 0.0
    audits: np.ndarray = field(default_factory=lambda: np.zeros((2, 2)))

    @property
    def total_risk(self) -> float:
        return self.risk + self.checked_risk + self.wrong_by_change

    @property
    def max_counted_error(self) -> float:
        return min(_MAX_COUNTED_ERROR, _COUNTED_FACTOR * self.max_error)

    @property
    def most_wrong(self) -> int:
        """An upper bound of the number of wrong answers among the `served` answers.

        It has 90% probability, but for the answers that changed: their number is an estimate.
        """
        risk = (self.risk + self.checked_risk) / (1 - self.comparison_error_rate)
        by_score = bisect_left(
            range(self.served),
            True,
            key=lambda wrong: max_risk(wrong, self.corrected_wrong, self.score_expected) >= risk,
        )
        return min(self.served, by_score + math.ceil(self.wrong_by_change))

    @property
    def servable_request_share(self) -> float:
        total = float(self.error_histogram.sum())
        return float(self.error_histogram[self.error_limit >= _EDGES].sum()) / total if total else 0.0

    def bound_allows(self, error: float) -> bool:
        """Whether `max_error` allows the policy `checked` to serve one more answer with this estimated error."""
        return self.total_risk + error <= _CHECKED_SHARE * max_expected_events(
            self.max_error * max(self.served, MIN_SERVED)
        )

    def add_served(self, answers: int, risk: float) -> None:
        if answers:
            self.served += answers
            self.risk += risk
            self._add_requests(risk / answers, answers)

    def add_comparison(self, error: float, right: bool) -> bool:
        """Add a comparison of an answer with this estimated error; return whether it counts."""
        is_counted = error <= self.max_counted_error
        if is_counted:
            self.wrong = self.wrong * COMPARISON_DECAY + (not right)
            self.expected = self.expected * COMPARISON_DECAY + error
            self.num_compared = self.num_compared * COMPARISON_DECAY + 1
        self._add_requests(error, 1)
        return is_counted

    def _add_requests(self, error: float, count: int) -> None:
        self.error_histogram *= (1 - 1 / _HISTOGRAM_DECAY) ** count
        self.error_histogram[min(int(np.searchsorted(_EDGES, error)), _BINS - 1)] += count

    def add_audits(self, audits: Sequence[tuple[bool, bool]]) -> None:
        for facts, model in audits:
            self.audits[int(facts), int(model)] += 1

    @property
    def corrected_wrong(self) -> float:
        """`wrong`, corrected by the errors of the comparison of facts in both directions that audits by a model show."""
        (different, falsely_different), (falsely_equal, equal) = self.audits
        undetected = falsely_equal / (falsely_equal + equal + _PRIOR_AUDITS) * (self.num_compared - self.wrong)
        detected = max(0.0, self.wrong - self.changed_wrong) * (
            1 - falsely_different / (different + falsely_different + _PRIOR_AUDITS)
        )
        return float(detected + max(0.0, undetected))

    @property
    def score_expected(self) -> float:
        return max(0.0, self.expected - self.changed_expected)

    @property
    def comparison_error_rate(self) -> float:
        """The probability that a comparison of answers errs, at most 0.5, estimated from comparisons between equal questions."""
        return min(0.5, (_PRIOR_JUDGE_ERRORS + self.num_judged_different) / (_PRIOR_REPEATS + self.num_repeats))

    def update(self) -> None:
        self.update_error_factor()
        self.update_error_limit()

    def update_error_factor(self) -> None:
        self.error_factor = max_error_factor(self.corrected_wrong, self.score_expected) / (
            1 - self.comparison_error_rate
        )

    def planned_risk(self) -> float:
        """Return the highest mean estimated error of the next served answers that `max_error` allows.

        These are 500 (fewer after changes), those until the 500th, or 0.7 times as many as were served, whatever is most.

        Each change that was found makes the estimate of the next changes better: the margin shrinks, and the next answers are
        planned with the changes that they will meet, over a shorter time. If a change has used more than the allowance, each
        answer may use a part of the allowance that it adds.
        """
        if self.score_expected <= 0:
            return 0.0
        known = self.num_changes / (1 + self.num_changes)
        planned = max(_PLANNED_ANSWERS * (1 - known / 2), MIN_SERVED - self.served, _PLANNED_SHARE * self.served)
        now = self.max_error * max(self.served, MIN_SERVED)
        added = self.max_error * max(self.served + planned, MIN_SERVED) - now
        by_change = self.wrong_by_change + _CHANGE_DEVIATIONS * (1 - known * 2 / 3) * math.sqrt(self.change_variance)
        changes = planned * self.expected_by_change / max(self.served, MIN_SERVED)
        risk = self.risk + self.checked_risk
        left = self._allowed_risk(now + added - by_change - known * changes) - risk
        least = max(now - by_change, self.max_error * MIN_SERVED)
        growth = self.max_error * planned
        earned = self._allowed_risk(least + max(1.0, growth - changes)) - self._allowed_risk(least)
        repaying = min(_EARNED_SHARE * earned, self._allowed_risk(now + growth) - risk)
        most = _MAX_PLANNED_FACTOR * self.max_error / max(self.corrected_wrong / self.score_expected, _LEAST_FACTOR)
        return max(0.0, min(max(left, repaying) / planned, most))

    def _allowed_risk(self, wrong: float) -> float:
        return max_risk(wrong, self.corrected_wrong, self.expected) * (1 - self.comparison_error_rate)

    def update_error_limit(self) -> None:
        total = np.cumsum(self.error_histogram)
        mean = np.cumsum(self.error_histogram * _EDGES) / np.maximum(total, 1e-12)
        within = np.flatnonzero((mean <= self.planned_risk()) & (total > 0))
        highest = min(_HIGHEST, _MAX_LIMIT_FACTOR * self.max_error)
        self.error_limit = min(highest, float(_EDGES[within[-1]])) if len(within) else 0.0
