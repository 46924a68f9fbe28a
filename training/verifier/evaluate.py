"""Evaluates the verifier on pairs that were not used for training: `python -m training.verifier.evaluate --pairs FILE`.

Prints the Brier score and the reliability curve. For the cosine and the verifier, with and without guards, it prints the
hit rates for several maximum shares of wrong answers.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvproxy.index.evaluation.labelled_pairs import LabelledPair, read_pairs
from kvproxy.index.evaluation.stream_evaluation import embed_texts
from kvproxy.index.models.embedder import Embedder, load_embedder
from kvproxy.index.models.verifier import BUILT_IN, load_verifier
from kvproxy.index.models.verifier.built_in import PlattScaling
from kvproxy.index.policies.guards import GUARDS
from training.verifier.pair_clusters import hold_out

WRONG_SHARES = (0.01, 0.02, 0.05, 0.10, 0.15)
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
    """Pairs with a probability between `low` and `high`: its mean, and the observed share of pairs with the same answer."""

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
    """The pairs whose score is at least `level`; `hit_rate` is their share of all pairs with the same answer."""

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


def cosines(pairs: Sequence[LabelledPair], embedder: Embedder) -> np.ndarray:
    vectors = embed_texts([pair.a for pair in pairs] + [pair.b for pair in pairs], embedder, lambda share: None)
    found: np.ndarray = np.einsum("ij,ij->i", vectors[: len(pairs)], vectors[len(pairs) :])
    return found


def print_report(pairs: Sequence[LabelledPair], verifier: str) -> None:
    same = np.array([pair.same for pair in pairs])
    embedder = load_embedder()
    cosine = cosines(pairs, embedder)
    is_vetoed = np.array([any(guard.vetoes(pair.a, pair.b) for guard in GUARDS) for pair in pairs])
    chance = load_verifier(verifier, embedder.name).score([(pair.a, pair.b) for pair in pairs], cosine)
    print(f"{len(pairs):,} pairs, {same.mean():.1%} the same; accuracy {((chance > 0.5) == same).mean():.3f}")
    if not same.any():
        print("\nserved by level: verifier, verifier+guards")
        for level in (0.5, 0.8, 0.9, 0.95):
            print(f"   {level}  {(chance >= level).sum():>6}  {((chance >= level) & ~is_vetoed).sum():>6}")
        return
    print(f"Brier score {brier_score(chance, same):.4f} (constant: {same.mean() * (1 - same.mean()):.4f})")
    print("\nreliability\n   probability   pairs  predicted  observed")
    for part in reliability_curve(chance, same):
        print(f"   {part.low:.1f} to {part.high:.1f}  {part.count:>6}  {part.predicted:>9.3f}  {part.observed:>8.3f}")
    veto = np.where(is_vetoed, -np.inf, 0)
    scores = {"cosine": cosine, "cosine+guards": cosine + veto, "verifier": chance, "verifier+guards": chance + veto}
    print("\nhit rate (level) within a wrong share")
    print(f"{'':16}" + "".join(f"{share:>16.0%}" for share in WRONG_SHARES))
    for name, score in scores.items():
        found = [best_operating_point(score, same, share) for share in WRONG_SHARES]
        print(f"{name:16}" + "".join(f"{f'{each.hit_rate:.3f} ({each.level:.3f})':>16}" for each in found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, required=True, help='lines {"a", "b", "same"}, .jsonl or .jsonl.gz')
    parser.add_argument("--all", action="store_true", help="use the whole file, not only the held-out part")
    parser.add_argument("--verifier", default=BUILT_IN)
    options = parser.parse_args()
    pairs = list(read_pairs(options.pairs))
    print_report(pairs if options.all else hold_out(pairs).evaluate, options.verifier)


if __name__ == "__main__":
    main()
