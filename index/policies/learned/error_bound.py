"""Bounds of the number of wrong answers that hold at all times with 90% probability, in any order of the requests.

A wrong answer is an event. Its true probability is its estimated probability times a factor f, which is unknown and common to
all answers. Let x be the sum of all estimates, and w the number of events. Then `r^w * exp((1 - r) f x)` is a supermartingale
for every ratio r, and so is its mean over a distribution of ratios: above 1 for served answers, below 1 for comparisons. The
product of both means is a supermartingale, too. By Ville's inequality, it exceeds 10 at any time with at most 10% probability.
The bound is the largest number of wrong answers for which some factor f keeps the product at 10 or less.
"""

import math

import numpy as np

MIN_SERVED = 500
"""If fewer answers were served, the bound allows as many wrong answers as if this number had been served."""
_LOG_LIMIT = math.log(10)
# Shape and rate of gamma distributions, for about 5, 20, and 100 allowed events.
_SERVED_RATIOS = ((4.0, 1.3), (16.0, 9.4), (49.0, 35.0))
_COMPARED_RATIOS = (40.0, 52.0)
_MOST = 1e4


def max_expected_events(allowed: float) -> float:
    """Return the largest sum of the probabilities of events of which at most `allowed` occur, with a confidence of 90%."""
    return float(_max_expected(allowed, np.array([_LOG_LIMIT]))[0])


def max_risk(allowed: float, wrong: float, expected: float) -> float:
    """Return the largest sum of the estimated errors of served answers such that at most `allowed` answers are wrong.

    This holds with 90% probability, whatever the factor f between estimated and true errors is (see the module).

    Args:
        wrong: number of wrong answers in comparisons.
        expected: sum of the estimated errors of the compared answers.
    """
    if expected <= 0:
        return 0.0
    true = _possible_events(wrong)
    needed = _LOG_LIMIT - _log_evidence(true, wrong, *_COMPARED_RATIOS)
    return float((_max_expected(allowed, needed) / true).min() * expected)


def max_error_factor(wrong: float, expected: float) -> float:
    """Return the largest factor f (see the module) that the comparisons do not rule out; see `max_risk` for the arguments."""
    if expected <= 0:
        return _MOST
    true = np.maximum(_possible_events(wrong), wrong)
    return min(_MOST, float(np.interp(_LOG_LIMIT, _log_evidence(true, wrong, *_COMPARED_RATIOS), true)) / expected)


def _possible_events(wrong: float) -> np.ndarray:
    return np.geomspace(max(wrong, 1.0) / 2, (wrong + 15) * 5, 250)


def _max_expected(allowed: float, needed: np.ndarray) -> np.ndarray:
    if allowed <= 0:
        return np.zeros_like(needed)
    count = math.floor(allowed + 1e-9) + 1.0
    expected = np.linspace(0.0, count, 400)[1:]
    parts = [_log_evidence(expected, count, *ratios) for ratios in _SERVED_RATIOS]
    evidence = np.logaddexp.reduce(parts) - math.log(len(parts))
    found: np.ndarray = np.interp(needed, evidence[::-1], expected[::-1], left=np.inf, right=0.0)
    return found


def _log_evidence(expected: np.ndarray, count: float, shape: float, rate: float) -> np.ndarray:
    constant = shape * math.log(rate) - math.lgamma(shape) + math.lgamma(shape + count)
    evidence: np.ndarray = expected + constant - (shape + count) * np.log(rate + expected)
    return evidence
