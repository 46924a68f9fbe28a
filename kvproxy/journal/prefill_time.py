"""Estimates the prefill time of a token from recorded requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvproxy.journal.reader import JournalReader

if TYPE_CHECKING:
    import numpy as np

_MAX_SAMPLED = 5_000
MIN_REQUESTS = 20
_MAX_REQUESTS = 400
_MIN_SPREAD = 16  # Tokens between the 10% and 90% quantiles. With less, noise would hide the slope.
_WINDOWS = 4
_Z = 1.645


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Prefill seconds per computed token, with the bounds of the estimate."""

    seconds: float
    least: float
    most: float


def prefill_cost(tokens: Sequence[int], seconds: Sequence[float]) -> PrefillCost | None:
    """Return the prefill time per token: the Theil-Sen slope, which excludes the overhead of a request.

    Return None with too few requests, or too similar numbers of tokens. The bounds are Sen's 90% interval, extended to contain
    the slope of each quarter of the requests, because the load changes.

    Args:
        tokens: computed tokens of each request, newest first.
        seconds: prefill time of each request, in the same order.
    """
    if min(len(tokens), len(seconds)) < MIN_REQUESTS:
        return None
    import numpy as np

    x = np.asarray(tokens[:_MAX_REQUESTS], dtype=np.float64)
    y = np.asarray(seconds[:_MAX_REQUESTS], dtype=np.float64)
    if np.subtract(*np.quantile(x, (0.9, 0.1))) < _MIN_SPREAD:
        return None
    slopes = _pairwise_slopes(x, y)
    half = _Z * np.sqrt(len(x) * (len(x) - 1) * (2 * len(x) + 5) / 18) / (2 * len(slopes))
    low, middle, high = np.quantile(slopes, (max(0.0, 0.5 - half), 0.5, min(1.0, 0.5 + half)))
    ends = [float(low), float(high)]
    if len(x) >= _WINDOWS * MIN_REQUESTS:
        parts = zip(np.array_split(x, _WINDOWS), np.array_split(y, _WINDOWS), strict=True)
        ends += [float(np.median(part)) for xs, ys in parts if len(part := _pairwise_slopes(xs, ys))]
    return PrefillCost(max(0.0, float(middle)), max(0.0, min(ends)), max(0.0, *ends))


def _pairwise_slopes(x: "np.ndarray", y: "np.ndarray") -> "np.ndarray":
    import numpy as np

    one, other = np.triu_indices(len(x), 1)
    run = x[other] - x[one]
    differ = run != 0
    slopes: np.ndarray = (y[other] - y[one])[differ] / run[differ]
    return slopes


def prefill_costs(reader: JournalReader) -> dict[str, PrefillCost]:
    """Return the prefill cost of each model: the mean over its upstreams, weighted by their reused tokens."""
    sql = (
        "select model, upstream, prompt_tokens - reused_tokens, prefill_ms / 1000.0, reused_tokens from requests"
        " where prefill_ms is not null and reused_tokens is not null and status = 200"
        " and layer in ('prefix', 'forward', 'warming') order by number desc limit ?"
    )
    groups: dict[tuple[str, str | None], list[tuple[int, float, int]]] = {}
    for model, upstream, *measured in reader.rows(sql, [_MAX_SAMPLED]):
        groups.setdefault((model, upstream), []).append((measured[0], measured[1], measured[2]))
    costs: dict[str, list[tuple[PrefillCost, int]]] = {}
    for (model, _), rows in groups.items():
        computed, seconds, reused = zip(*rows, strict=True)
        if (cost := prefill_cost(computed, seconds)) is not None:
            costs.setdefault(model, []).append((cost, sum(reused)))
    return {model: mean_cost(model_costs) for model, model_costs in costs.items()}


def mean_cost(costs: Sequence[tuple[PrefillCost, int]]) -> PrefillCost:
    """Return the weighted mean of pairs of a cost and its weight."""
    total = sum(weight for _, weight in costs) or 1
    return PrefillCost(
        *(sum(getattr(cost, name) * weight for cost, weight in costs) / total for name in ("seconds", "least", "most"))
    )
