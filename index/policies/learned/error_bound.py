"""Two anytime-valid bounds of the error guarantee.

Each wrong answer is an event with a probability known before it. If these add up to V, the number of events behaves like a
Poisson process at time V. `max_expected_events` bounds V for a number of allowed events, and `max_error_factor` bounds the factor
by which the probabilities may be too small.
"""

import math

FROM = 500
"""Number of served answers from which the bound holds. Before, the number of wrong answers allowed then holds."""
_FAILS = 0.05
"""Probability that one bound fails over the life of a cache; both hold with probability 0.9."""
# A Poisson process crosses `max_expected_events` with probability 0.05; tests simulate it.
_Z = 2.9
# Ratios of the true factor to the tested one. Each gives a martingale, and so does their mean.
_RATIOS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_LOG_RATIOS = tuple(map(math.log, _RATIOS))
_REFUSED = math.log(len(_RATIOS) / _FAILS)
_MOST = 1e4


def max_expected_events(allowed: float) -> float:
    """Return the largest expected number of events such that more than `allowed` ever occur with 5% probability.

    This is a low quantile of event `allowed + 1` of a Poisson process (Wilson and Hilferty's approximation).
    """
    if allowed <= 0:
        return 0.0
    events = math.floor(allowed) + 1.0
    return float(events * max(0.0, 1 - 1 / (9 * events) - _Z / (3 * math.sqrt(events))) ** 3)


def max_error_factor(seen: float, expected: float) -> float:
    """Return the largest factor by which the error probabilities may be too small, given the observed events.

    For probabilities too small by a factor of at least f, `r^seen * exp((1 - r) f expected)` is a supermartingale for
    every ratio r < 1. By Ville's inequality, its mean over r reaches 20 with probability 0.05 at most.
    """
    if expected <= 0:
        return _MOST
    low, high = 0.0, _MOST
    for _ in range(40):
        middle = (low + high) / 2
        if _evidence(seen, middle * expected) < _REFUSED:
            low = middle
        else:
            high = middle
    return high


def _evidence(seen: float, expected: float) -> float:
    terms = [seen * log + (1 - ratio) * expected for ratio, log in zip(_RATIOS, _LOG_RATIOS, strict=True)]
    top = max(terms)
    return top + math.log(sum(math.exp(term - top) for term in terms))
