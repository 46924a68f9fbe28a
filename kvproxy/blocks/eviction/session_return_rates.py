"""Rates at which paused sessions return. A session pauses between two requests.

The index of a pause (Gittins index) is the probability of a return within a time limit, divided by the expected wait;
the limit maximizes it. The session with the lowest index loses its blocks first.
"""

import math
from collections.abc import Iterable

PauseClass = tuple[str, ...]
"""A class of pauses. `("tool", "<16")` is a subclass of `("tool",)`, whose rates are its prior; () has all pauses."""

_NUM_BINS = 18
# Seconds: [0, 1), [1, 2), [2, 4), and so on. The last bin has no end.
_WIDTHS = [1.0] + [2.0**number for number in range(_NUM_BINS - 1)]
_PRIOR_RETURNS = 3.0  # weight of the prior rate in each bin
_MAX_PAUSES = 20_000  # Then all counts are halved, so that the rates follow the traffic.


class _PauseCounts:
    __slots__ = ("censored", "returned")

    def __init__(self) -> None:
        self.returned = [0.0] * _NUM_BINS
        self.censored = [0.0] * _NUM_BINS

    def halve(self) -> None:
        self.returned = [count / 2 for count in self.returned]
        self.censored = [count / 2 for count in self.censored]


class ReturnRates:
    """Learns how often sessions return, by class and age of the pause.

    Args:
        prior_factors: factor of the prior rates of each class of one element, by this element; 1 by default.
    """

    def __init__(self, prior_factors: dict[str, float]) -> None:
        self._prior_factors = prior_factors
        self._tables: dict[PauseClass, _PauseCounts] = {}
        self._current: dict[PauseClass, list[int]] = {}
        self._rates: dict[PauseClass, list[float]] = {}
        self._indexes: dict[PauseClass, list[float]] = {}
        self._num_pauses = 0

    def record(self, pause: PauseClass, age: float, *, returned: bool) -> None:
        """Record the end of a pause: the session returned, or it is no longer observed."""
        for depth in range(len(pause) + 1):
            table = self._tables.setdefault(pause[:depth], _PauseCounts())
            (table.returned if returned else table.censored)[_bin(age)] += 1
        self._num_pauses += 1
        if self._num_pauses >= _MAX_PAUSES:
            self._num_pauses //= 2
            for table in self._tables.values():
                table.halve()

    def update(self, current: Iterable[tuple[PauseClass, float]]) -> None:
        """Update the rates from the recorded pauses and the current ones, given as pairs of class and age in seconds."""
        self._current.clear()
        self._rates.clear()
        self._indexes.clear()
        for pause, age in current:
            for depth in range(len(pause) + 1):
                self._current.setdefault(pause[:depth], [0] * _NUM_BINS)[_bin(age)] += 1

    def index(self, pause: PauseClass, age: float) -> float:
        """Return the index of a pause of this age in seconds."""
        found = self._indexes.get(pause)
        if found is None:
            found = self._indexes[pause] = _indexes(self._return_rates(pause))
        return found[_bin(age)]

    def _return_rates(self, pause: PauseClass) -> list[float]:
        found = self._rates.get(pause)
        if found is not None:
            return found
        # Without measurements, the rate is inversely proportional to the age, which is the order of LRU.
        prior = self._return_rates(pause[:-1]) if pause else [0.5 / width for width in _WIDTHS]
        scale = self._prior_factors.get(pause[0], 1.0) if len(pause) == 1 else 1.0
        table, current = self._tables.get(pause, _PauseCounts()), self._current.get(pause, [0] * _NUM_BINS)
        rates = self._rates[pause] = [0.0] * _NUM_BINS
        longer = 0.0
        for number in range(_NUM_BINS - 1, -1, -1):
            ended = table.returned[number] + table.censored[number] + current[number]
            seconds = _WIDTHS[number] * (longer + ended / 2)
            prior_seconds = _PRIOR_RETURNS / (scale * prior[number])
            rates[number] = (table.returned[number] + _PRIOR_RETURNS) / (seconds + prior_seconds)
            longer += ended
        return rates


def _bin(age: float) -> int:
    return min(_NUM_BINS - 1, int(age).bit_length())


def _indexes(rates: list[float]) -> list[float]:
    indexes = []
    for start in range(_NUM_BINS):
        waiting, returns, seconds, best = 1.0, 0.0, 0.0, 0.0
        for rate, width in zip(rates[start:], _WIDTHS[start:], strict=True):
            returned = -waiting * math.expm1(-rate * width)
            returns += returned
            seconds += returned / rate
            waiting -= returned
            best = max(best, returns / seconds)
        indexes.append(best)
    return indexes
