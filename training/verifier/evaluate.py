"""How good the verifier is, on pairs that it was not trained on: `python -m training.verifier.evaluate --pairs FILE`.

Prints its reliability curve and Brier score, and the share of true pairs that the cosine, the verifier, and either with
the guards serve while at most a given share of what they serve is wrong.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvproxy.index.evaluation.labelled_pairs import Pair, read_pairs
from kvproxy.index.evaluation.stream_evaluation import embed
from kvproxy.index.models.embedder import Embedder, load_embedder
from kvproxy.index.models.verifier import BUILT_IN, load_verifier
from kvproxy.index.policies.guards import GUARDS
from training.verifier.quality import brier, most_served, reliability
from training.verifier.splits import cluster_sizes, hold_out

WRONG_SHARES = (0.01, 0.02, 0.05, 0.10, 0.15)


def cosines(pairs: Sequence[Pair], embedder: Embedder) -> np.ndarray:
    """Similarities of the questions of each pair, float32 `[len(pairs)]`."""
    vectors = embed([pair.a for pair in pairs] + [pair.b for pair in pairs], embedder, lambda share: None)
    found: np.ndarray = np.einsum("ij,ij->i", vectors[: len(pairs)], vectors[len(pairs) :])
    return found


def vetoed(pairs: Sequence[Pair]) -> np.ndarray:
    """Whether any guard vetoes, bool `[len(pairs)]`."""
    return np.array([any(guard.vetoes(pair.a, pair.b) for guard in GUARDS) for pair in pairs])


def report(pairs: Sequence[Pair], verifier: str) -> None:
    """Print what the module says."""
    same = np.array([pair.same for pair in pairs])
    embedder = load_embedder()
    cosine, stopped = cosines(pairs, embedder), vetoed(pairs)
    chance = load_verifier(verifier, embedder.name).score([(pair.a, pair.b) for pair in pairs], cosine)
    print(f"{len(pairs):,} pairs, {same.mean():.1%} the same; accuracy {((chance > 0.5) == same).mean():.3f}")
    if not same.any():
        print("\nserved by level: verifier, verifier+guards")
        for level in (0.5, 0.8, 0.9, 0.95):
            print(f"   {level}  {(chance >= level).sum():>6}  {((chance >= level) & ~stopped).sum():>6}")
        return
    print(
        f"Brier score {brier(chance, same):.4f} (always saying {same.mean():.2f}: {same.mean() * (1 - same.mean()):.4f})"
    )
    print("\nreliability\n   probability   pairs    said     was")
    for part in reliability(chance, same):
        print(f"   {part.low:.1f} to {part.high:.1f}  {part.count:>6}  {part.said:>6.3f}  {part.was:>6.3f}")
    free = np.where(stopped, -np.inf, 0)
    scores = {"cosine": cosine, "cosine+guards": cosine + free, "verifier": chance, "verifier+guards": chance + free}
    print("\nshare of the true pairs served (level) at a wrong share of at most")
    print(f"{'':16}" + "".join(f"{share:>16.0%}" for share in WRONG_SHARES))
    for name, score in scores.items():
        found = [most_served(score, same, share) for share in WRONG_SHARES]
        print(f"{name:16}" + "".join(f"{f'{each.hit_rate:.3f} ({each.level:.3f})':>16}" for each in found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=Path, required=True, help='lines {"a", "b", "same"}, .jsonl or .jsonl.gz')
    parser.add_argument("--all", action="store_true", help="the whole file, not the part that training holds out of it")
    parser.add_argument(
        "--largest", type=int, help="leave out clusters of more pairs, which are one question many times"
    )
    parser.add_argument("--limit", type=int, help="only the first so many pairs")
    parser.add_argument("--verifier", default=BUILT_IN)
    options = parser.parse_args()
    pairs = list(read_pairs(options.pairs))
    pairs = pairs if options.all else hold_out(pairs).report
    if options.largest:
        sizes = cluster_sizes(pairs)
        pairs = [pair for pair, size in zip(pairs, sizes, strict=True) if size <= options.largest]
    report(pairs[: options.limit], options.verifier)


if __name__ == "__main__":
    main()
