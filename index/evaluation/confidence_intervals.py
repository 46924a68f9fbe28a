"""Confidence intervals of shares."""

import math

_Z = 1.96  # 95%


def pairs_for_bound(bound: float) -> int:
    """Return how many pairs, all served rightly, prove with 95% confidence that at most the share `bound` is served wrongly."""
    return math.ceil(_Z**2 * (1 / bound - 1))


def wilson_interval(count: int, total: int) -> tuple[float, float]:
    """Return the 95% Wilson confidence interval of the share `count / total`; (0, 1) if the total is 0."""
    if not total:
        return 0.0, 1.0
    share = count / total
    centre = share + _Z**2 / (2 * total)
    spread = _Z * math.sqrt(share * (1 - share) / total + _Z**2 / (4 * total**2))
    scale = 1 + _Z**2 / total
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
