"""The two bounds that the guarantee stands on; both hold at all times at once, so that one may look as often as one likes.

Where an event happens with a probability that is known just before, and those probabilities add up to V, the number of events
behaves like a Poisson process at time V. `most_expected` says how large V may grow while only so many events are allowed;
`largest_factor` says by how much the probabilities may have been too small, after the events that were seen.
"""

import math

CONFIDENCE = 0.9
"""The probability that the guarantee holds over the life of a cache: each of the two bounds may fail in one case of twenty."""
FROM = 500
"""Answers served from which on the bound is promised; before that, as many may be wrong as are allowed then."""
_FAILS = 0.05
# A Poisson process ever crosses `most_expected` with a probability of 5%; tests simulate it.
_Z = 2.9
# Ratios of the true factor to the one that is tested. Each makes a martingale, and so does their mean.
_RATIOS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_LOG_RATIOS = tuple(map(math.log, _RATIOS))
_REFUSED = math.log(len(_RATIOS) / _FAILS)
_MOST = 1e4


def most_expected(allowed: float) -> float:
    """The largest sum of probabilities for which more than `allowed` events are unlikely, now and ever.

    It is a low quantile of the time at which a Poisson process has one event more (Wilson and Hilferty's approximation).
    """
    if allowed <= 0:
        return 0.0
    events = math.floor(allowed) + 1.0
    return float(events * max(0.0, 1 - 1 / (9 * events) - _Z / (3 * math.sqrt(events))) ** 3)


def largest_factor(seen: float, expected: float) -> float:
    """The largest factor on the probabilities that what was seen leaves possible.

    For a factor f, and a ratio r below 1, `r^seen * exp((1 - r) f expected)` does not grow on average if the probabilities were
    too small by f or more (a supermartingale). Where the mean over all r has reached 20, that factor is refused
    (Ville's inequality); nobody can make it reach 20 by waiting in more than one case of twenty.

    Args:
        seen: events.
        expected: the sum of their probabilities, as they were given.
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
    # So few terms that arrays would cost more than the sums.
    terms = [seen * log + (1 - ratio) * expected for ratio, log in zip(_RATIOS, _LOG_RATIOS, strict=True)]
    top = max(terms)
    return top + math.log(sum(math.exp(term - top) for term in terms))
