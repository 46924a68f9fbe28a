"""Prefill time per token, estimated from requests with different numbers of computed tokens.

The time of a prefill is an overhead plus a time per token. The slope over many requests (Theil 1950, Sen 1968) excludes the
overhead; seconds divided by tokens would include it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MIN_REQUESTS = 20
_MAX_REQUESTS = 400
_MIN_SPREAD = 16
"""Minimum difference in tokens between the 10% and 90% quantiles; with less, noise would hide the slope."""
_WINDOWS = 4
_Z = 1.645


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Prefill seconds per computed token: the estimate, and the ends of its plausible range."""

    seconds: float
    least: float
    most: float


def prefill_cost(tokens: Sequence[int], seconds: Sequence[float]) -> PrefillCost | None:
    """Return the Theil-Sen slope of seconds by tokens; None with too few requests, or too similar numbers of tokens.

    The range is Sen's 90% interval. Because the load changes, it is extended to contain the slope of each
    quarter of the requests.

    Args:
        tokens: computed tokens of each request, newest first.
        seconds: prefill time of each request, in the same order.
    """
    x = np.asarray(tokens[:_MAX_REQUESTS], dtype=np.float64)
    y = np.asarray(seconds[:_MAX_REQUESTS], dtype=np.float64)
    if len(x) < MIN_REQUESTS or np.subtract(*np.quantile(x, (0.9, 0.1))) < _MIN_SPREAD:
        return None
    slopes = _slopes(x, y)
    half = _Z * np.sqrt(len(x) * (len(x) - 1) * (2 * len(x) + 5) / 18) / (2 * len(slopes))
    low, middle, high = np.quantile(slopes, (max(0.0, 0.5 - half), 0.5, min(1.0, 0.5 + half)))
    ends = [float(low), float(high)]
    if len(x) >= _WINDOWS * MIN_REQUESTS:
        parts = zip(np.array_split(x, _WINDOWS), np.array_split(y, _WINDOWS), strict=True)
        ends += [float(np.median(part)) for xs, ys in parts if len(part := _slopes(xs, ys))]
    return PrefillCost(max(0.0, float(middle)), max(0.0, min(ends)), max(0.0, *ends))


def _slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    one, other = np.triu_indices(len(x), 1)
    run = x[other] - x[one]
    differ = run != 0
    slopes: np.ndarray = (y[other] - y[one])[differ] / run[differ]
    return slopes


def mean_cost(costs: Sequence[tuple[PrefillCost, int]]) -> PrefillCost:
    """Return the mean of costs, each paired with its weight."""
    total = sum(weight for _, weight in costs) or 1
    return PrefillCost(
        *(sum(getattr(cost, name) * weight for cost, weight in costs) / total for name in ("seconds", "least", "most"))
    )
