"""Anytime-valid bounds of the error guarantee.

Each wrong answer is an event with a probability known before it, up to an unknown common factor f. For w events with
probabilities that add up to x, `r^w * exp((1 - r) f x)` is a supermartingale for every ratio r, and so is its mean over a
distribution of ratios. The bounds use the served answers with ratios above 1, and the comparisons with ratios below 1. The
product of both is a supermartingale too, so by Ville's inequality it reaches 10 with a probability of at most 10%, in any
order of the requests.
"""

import math

import numpy as np

FROM = 500
"""Served answers from which the bound holds. Before, as many wrong answers are allowed as at this number."""
_REFUSED = math.log(10)
"""Logarithm of the evidence that refuses a factor: the inverse of the probability that the bound fails."""
# Shape and rate of gamma distributions, for about 5, 20, and 100 allowed events.
_SERVED_RATIOS = ((4.0, 1.3), (16.0, 9.4), (49.0, 35.0))
_COMPARED_RATIOS = (40.0, 52.0)
_MOST = 1e4


def max_expected_events(allowed: float) -> float:
    """Return the largest expected number of events such that more than `allowed` ever occur with 10% probability."""
    return float(_max_expected(allowed, np.array([_REFUSED]))[0])


def max_risk(allowed: float, wrong: float, expected: float) -> float:
    """Return the largest sum of estimated errors of served answers that keeps to a number of wrong answers.

    More than `allowed` of the served answers are ever wrong with 10% probability at most, for each factor f.

    Args:
        wrong, expected: number of wrong answers among the comparisons, and the sum of their estimated errors.
    """
    if expected <= 0:
        return 0.0
    true = _possible_events(wrong)
    needed = _REFUSED - _log_evidence(true, wrong, *_COMPARED_RATIOS)
    return float((_max_expected(allowed, needed) / true).min() * expected)


def max_error_factor(wrong: float, expected: float) -> float:
    """Return the largest factor on the estimated errors that is compatible with the comparisons."""
    if expected <= 0:
        return _MOST
    # The evidence against a number of events above the observed one rises with it.
    true = np.maximum(_possible_events(wrong), wrong)
    return min(_MOST, float(np.interp(_REFUSED, _log_evidence(true, wrong, *_COMPARED_RATIOS), true)) / expected)


def _possible_events(wrong: float) -> np.ndarray:
    return np.geomspace(max(wrong, 1.0) / 2, (wrong + 15) * 5, 250)


def _max_expected(allowed: float, needed: np.ndarray) -> np.ndarray:
    """Return the largest expected numbers at which event `allowed + 1` has the needed log evidence."""
    if allowed <= 0:
        return np.zeros_like(needed)
    count = math.floor(allowed + 1e-9) + 1.0
    expected = np.linspace(0.0, count, 400)[1:]
    parts = [_log_evidence(expected, count, *ratios) for ratios in _SERVED_RATIOS]
    evidence = np.logaddexp.reduce(parts) - math.log(len(parts))
    # The evidence falls with the expected number.
    found: np.ndarray = np.interp(needed, evidence[::-1], expected[::-1], left=np.inf, right=0.0)
    return found


def _log_evidence(expected: np.ndarray, count: float, shape: float, rate: float) -> np.ndarray:
    """Return the logarithm of the mean supermartingale over gamma-distributed ratios."""
    constant = shape * math.log(rate) - math.lgamma(shape) + math.lgamma(shape + count)
    evidence: np.ndarray = expected + constant - (shape + count) * np.log(rate + expected)
    return evidence
