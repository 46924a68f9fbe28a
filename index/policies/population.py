"""How entries differ in what their scores mean, learned from all of them, so that a new entry does not start from nothing.

As in vCache (arXiv 2502.03771), an entry's answer is right for a question of score z with probability `1 / (1 + exp(-slope (z -
threshold)))`. There every entry estimates its own two numbers. Here they are drawn from a distribution that all entries share,
kept on a grid: Bayes' rule on the grid is exact, needs no optimiser, and takes one product an observation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_THRESHOLDS = np.arange(-8.0, 12.25, 0.5)
_SLOPES = np.array([0.5, 1.0, 2.0, 4.0])
_THRESHOLD = np.repeat(_THRESHOLDS, len(_SLOPES))
_SLOPE = np.tile(_SLOPES, len(_THRESHOLDS))
# One more curve for entries that are right for nobody else, whatever the score; a comparison errs now and then.
_NEVER_RIGHT = np.log(0.01)
_SHARE_NEVER = 0.05
# Entries that the prior is worth. A third of it expects even high scores to be wrong, so that after n entries without a mistake
# about 3/n of error is still feared: the rule of three, the upper end of a 95% interval.
_STRENGTH = 10.0
_SWEEPS = 500
_STILL = 2e-4  # Mass that a sweep moves at the end.
_CHUNK = 10_000  # Observations in memory at a time.
CURVES = len(_THRESHOLD) + 1


def coordinate(score: float | np.ndarray, scorer: str) -> np.ndarray:
    """Scores on the scale of the grid: log-odds of a probability; a cosine by its distance from 0.9, a tenth being 4."""
    values: np.ndarray = np.asarray(score, dtype=np.float64)
    if scorer == "cosine":
        return (values - 0.9) * 40.0
    inner = np.clip(values, 1e-4, 1 - 1e-4)
    odds: np.ndarray = np.log(inner / (1 - inner))
    return odds


def log_right(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`[n, CURVES]` log-probabilities of being right and of being wrong at each score, `[n]`, under each curve."""
    odds = _SLOPE * (np.asarray(z)[:, None] - _THRESHOLD)
    never = np.full((len(odds), 1), _NEVER_RIGHT)
    right = np.hstack([-np.logaddexp(0.0, -odds), never])
    wrong = np.hstack([-np.logaddexp(0.0, odds), np.log1p(-np.exp(never))])
    return right, wrong


def likelihood(z: np.ndarray, rights: np.ndarray) -> np.ndarray:
    """`[n, CURVES]`: the log-likelihood of each observation under each curve."""
    right, wrong = log_right(z)
    return np.where(np.asarray(rights, dtype=bool)[:, None], right, wrong)


def _prior() -> np.ndarray:
    flat = np.full(CURVES - 1, (1 - _SHARE_NEVER) / (CURVES - 1))
    return np.append(flat, _SHARE_NEVER)


@dataclass(frozen=True, slots=True)
class Population:
    """A distribution of entries over the curves, `[CURVES]`, and how many entries taught it."""

    weights: np.ndarray
    entries: int = 0

    @classmethod
    def unknown(cls) -> "Population":
        """Before anything was observed."""
        return cls(_prior())

    def fitted(self, z: np.ndarray, rights: np.ndarray, entries: Sequence[str]) -> "Population":
        """The distribution that best explains observations and the prior, by expectation maximisation from here on.

        There is one best distribution, so that it does not matter from where, but for the time it takes.

        Args:
            z: `[n]` coordinates.
            rights: `[n]` bool.
            entries: `[n]` ids; observations of one entry share its curve.
        """
        if not len(z):
            return Population.unknown()
        names, places = np.unique(np.asarray(entries), return_inverse=True)
        total = np.zeros((len(names), CURVES), dtype=np.float32)
        for start in range(0, len(z), _CHUNK):
            part = slice(start, start + _CHUNK)
            np.add.at(total, places[part], likelihood(z[part], rights[part]).astype(np.float32))
        evidence = np.exp(total - total.max(axis=1, keepdims=True))
        prior = _STRENGTH * _prior()
        weights = self.weights
        for _ in range(_SWEEPS):
            explained = evidence @ weights.astype(np.float32)
            better = (prior + weights * (evidence.T @ (1.0 / explained))) / (_STRENGTH + len(names))
            moved, weights = np.abs(better - weights).sum(), better
            if moved < _STILL:
                break
        return Population(weights, len(names))

    def error_bound(self, z: float, seen: np.ndarray, rights: np.ndarray) -> float:
        """A bound on the probability that an entry's answer is wrong at a score.

        vCache's bound with the posterior's quantiles: with probability `1 - e` the entry errs no more often than the `1 - e`
        quantile q(e) of its possible curves does, so it is wrong with probability `e + (1 - e) q(e)` at most. This is the
        least such bound over e.

        Args:
            z: coordinate of the score.
            seen: `[n]` coordinates of the entry's own observations.
            rights: `[n]` bool, what they found.
        """
        posterior = self.weights
        if len(seen):
            total = likelihood(seen, rights).sum(axis=0)
            posterior = posterior * np.exp(total - total.max())
            posterior = posterior / posterior.sum()
        right = np.exp(log_right(np.array([z]))[0][0])
        order = np.argsort(-right)
        return float(1.0 - np.max(np.cumsum(posterior[order]) * right[order]))
