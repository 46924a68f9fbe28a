"""Evaluates the verifier on pairs that were not used for training: `python -m training.verifier.evaluate --pairs FILE`.

Prints the Brier score and the reliability curve. `--out` writes the pairs, for `kvproxy calibrate`.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from kvproxy.index.evaluation.labelled_pairs import LabelledPair, read_pairs
from kvproxy.index.evaluation.stream_evaluation import embed_texts
from kvproxy.index.models.embedder import Embedder, load_embedder
from kvproxy.index.models.verifier import BUILT_IN, load_verifier
from kvproxy.index.models.verifier.built_in import PlattScaling
from training.verifier.pair_clusters import hold_out

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


def cosines(pairs: Sequence[LabelledPair], embedder: Embedder) -> np.ndarray:
    vectors = embed_texts([pair.a for pair in pairs] + [pair.b for pair in pairs], embedder, lambda share: None)
    found: np.ndarray = np.einsum("ij,ij->i", vectors[: len(pairs)], vectors[len(pairs) :])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, required=True, help='lines {"a", "b", "same"}, .jsonl or .jsonl.gz')
    parser.add_argument("--out", type=Path, help="the file to write, .jsonl")
    parser.add_argument("--verifier", default=BUILT_IN)
    options = parser.parse_args()
    pairs = hold_out(list(read_pairs(options.pairs))).evaluate
    if options.out:
        options.out.write_text("".join(json.dumps(asdict(pair)) + "\n" for pair in pairs))
    same = np.array([pair.same for pair in pairs])
    embedder = load_embedder()
    verifier = load_verifier(options.verifier, embedder.name)
    chance = verifier.score([(pair.a, pair.b) for pair in pairs], cosines(pairs, embedder))
    print(f"{len(pairs):,} pairs, {same.mean():.1%} the same; accuracy {((chance > 0.5) == same).mean():.3f}")
    brier_score = np.mean((chance - same) ** 2)
    print(f"Brier score {brier_score:.4f} (constant: {same.mean() * (1 - same.mean()):.4f})")
    print("\nreliability\n   probability   pairs  predicted  observed")
    for part in reliability_curve(chance, same):
        print(f"   {part.low:.1f} to {part.high:.1f}  {part.count:>6}  {part.predicted:>9.3f}  {part.observed:>8.3f}")


if __name__ == "__main__":
    main()
