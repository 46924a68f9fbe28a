from dataclasses import dataclass

import numpy as np

from kvproxy.index.models.verifier.built_in import PlattScaling

_BINS = 10


def fit_scaling(logits: np.ndarray, same: np.ndarray, cosines: np.ndarray | None = None) -> PlattScaling:
    """Fit by logistic regression; each array is `[n]` for n pairs. None omits the cosines."""
    from sklearn.linear_model import LogisticRegression

    known = np.stack([logits] if cosines is None else [logits, cosines], axis=1).astype(np.float64)
    model = LogisticRegression(C=1e6, max_iter=1000).fit(known, same.astype(int))
    slope, *cosine = (round(float(weight), 4) for weight in model.coef_[0])
    return PlattScaling(slope, round(float(model.intercept_[0]), 4), *cosine)


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Pairs with a probability between `low` and `high`.

    Attributes:
        predicted: mean probability.
        observed: share of pairs with the same answer.
    """

    low: float
    high: float
    count: int
    predicted: float
    observed: float


def reliability_curve(probabilities: np.ndarray, same: np.ndarray) -> list[ReliabilityBin]:
    place = np.minimum((probabilities * _BINS).astype(int), _BINS - 1)
    curve = []
    for number in range(_BINS):
        members = place == number
        if members.any():
            predicted, observed = float(probabilities[members].mean()), float(same[members].mean())
            curve.append(ReliabilityBin(number / _BINS, (number + 1) / _BINS, int(members.sum()), predicted, observed))
    return curve


def brier_score(probabilities: np.ndarray, same: np.ndarray) -> float:
    return float(np.mean((probabilities - same) ** 2))


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The pairs whose score is at least `level`.

    Attributes:
        served: number of these pairs.
        hit_rate: their share of all pairs with the same answer.
        wrong_share: share of these pairs whose answers differ.
    """

    level: float
    served: int
    hit_rate: float
    wrong_share: float


def best_operating_point(scores: np.ndarray, same: np.ndarray, max_wrong_share: float) -> OperatingPoint:
    """Return the point with the lowest level whose wrong share is within the maximum."""
    order = np.argsort(-scores, kind="stable")
    ranked, right = scores[order], same[order].astype(bool)
    served = np.arange(1, len(scores) + 1)
    wrong = np.cumsum(~right) / served
    # Pairs with equal scores are served together.
    is_last_of_score = np.append(ranked[1:] != ranked[:-1], True)
    allowed = np.flatnonzero((wrong <= max_wrong_share) & is_last_of_score & np.isfinite(ranked))
    if not len(allowed):
        return OperatingPoint(float("inf"), 0, 0.0, 0.0)
    last = allowed[-1]
    hit_rate = float(right[: last + 1].sum() / right.sum())
    return OperatingPoint(float(ranked[last]), int(served[last]), hit_rate, float(wrong[last]))
