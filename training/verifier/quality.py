"""Fits the scaling from logits to probabilities, and measures how good probabilities are."""

from dataclasses import dataclass

import numpy as np

from kvproxy.index.models.verifier.built_in import PlattScaling


def fit_scaling(logits: np.ndarray, same: np.ndarray, cosines: np.ndarray | None = None) -> PlattScaling:
    """The most likely scaling.

    Args:
        logits: of pairs, `[n]`.
        same: whether each pair is the same, `[n]`.
        cosines: of their embeddings, `[n]`; None to use the logits alone.
    """
    from sklearn.linear_model import LogisticRegression

    known = np.stack([logits] if cosines is None else [logits, cosines], axis=1).astype(np.float64)
    model = LogisticRegression(C=1e6, max_iter=1000).fit(known, same.astype(int))
    slope, *cosine = (round(float(weight), 4) for weight in model.coef_[0])
    return PlattScaling(slope, round(float(model.intercept_[0]), 4), *cosine)


@dataclass(frozen=True, slots=True)
class Bin:
    """Pairs whose probability lies between `low` and `high`: how many, the mean probability, the share that is the same."""

    low: float
    high: float
    count: int
    said: float
    was: float


def reliability(probabilities: np.ndarray, same: np.ndarray, bins: int = 10) -> list[Bin]:
    """The reliability curve: bins of equal width that hold anything."""
    place = np.minimum((probabilities * bins).astype(int), bins - 1)
    curve = []
    for number in range(bins):
        held = place == number
        if held.any():
            said, was = float(probabilities[held].mean()), float(same[held].mean())
            curve.append(Bin(number / bins, (number + 1) / bins, int(held.sum()), said, was))
    return curve


def brier(probabilities: np.ndarray, same: np.ndarray) -> float:
    """Mean squared distance of the probability from what was: 0 is best, 0.25 is a coin."""
    return float(np.mean((probabilities - same) ** 2))


@dataclass(frozen=True, slots=True)
class Served:
    """What a level serves: pairs in all, the share of true pairs among all true pairs, the share of wrong ones among served."""

    level: float
    served: int
    hit_rate: float
    wrong_share: float


def most_served(scores: np.ndarray, same: np.ndarray, wrong_share: float) -> Served:
    """The lowest level whose served pairs (score at least the level) hold at most this share of wrong ones."""
    order = np.argsort(-scores, kind="stable")
    ranked, right = scores[order], same[order].astype(bool)
    served = np.arange(1, len(scores) + 1)
    wrong = np.cumsum(~right) / served
    # Pairs of one score are served together or not at all.
    whole = np.append(ranked[1:] != ranked[:-1], True)
    good = np.flatnonzero((wrong <= wrong_share) & whole & np.isfinite(ranked))
    if not len(good):
        return Served(float("inf"), 0, 0.0, 0.0)
    last = good[-1]
    return Served(
        float(ranked[last]), int(served[last]), float(right[: last + 1].sum() / right.sum()), float(wrong[last])
    )
