"""What several adapters say of pairs, for one to learn: `python -m index.verifier.teach --pairs FILE --teachers A B --out FILE`.

Their calibrated log-odds are averaged, over the labelled training pairs and over neighbours among the questions of
those that were never labelled. One adapter that learns them (`index.verifier.train --taught FILE`) then does nearly as
well as all of them, in one pass (knowledge distillation, arXiv 1503.02531); and what has no label cannot be learned by heart.
"""

import argparse
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from rich.progress import track

from index.embedder import Embedder, load_embedder
from index.minilm.weights import read_tensors
from index.verifier.built_in import RANGES, BuiltInVerifier
from index.verifier.calibration import Calibration
from index.verifier.evaluate import cosines
from index.verifier.finish import average, ranges_of
from index.verifier.pairs import Pair, Parts, hold_out, key, read_pairs

NEIGHBOURS = 8
AT_ONCE = 2048
MEASURED = 256


class Teacher:
    """One adapter, with a calibration fitted on the pairs that are held out for that."""

    def __init__(self, adapter: Path, parts: Parts, cosine: np.ndarray) -> None:
        trained = average([read_tensors(adapter)[0]])
        ranges = {f"{RANGES}{name}": value for name, value in ranges_of(trained, parts.train[:MEASURED]).items()}
        self._verifier = BuiltInVerifier(trained | ranges, Calibration(1, 0))
        same = np.array([pair.same for pair in parts.calibrate])
        self._calibration = Calibration.fit(self._logits(parts.calibrate), same, cosine)

    def log_odds(self, pairs: Sequence[Pair], cosine: np.ndarray) -> np.ndarray:
        """`[len(pairs)]`, given the cosine of each."""
        chance = self._calibration.probabilities(self._logits(pairs), cosine).clip(1e-6, 1 - 1e-6)
        odds: np.ndarray = np.log(chance / (1 - chance))
        return odds

    def _logits(self, pairs: Sequence[Pair]) -> np.ndarray:
        return self._verifier.logits([(pair.a, pair.b) for pair in pairs])


def near(pairs: Sequence[Pair], embedder: Embedder, least: float) -> list[Pair]:
    """Neighbours among the questions of labelled pairs that have at least a cosine and no label."""
    import faiss

    texts = sorted({text for pair in pairs for text in (pair.a, pair.b)})
    vectors = np.concatenate([embedder.embed(texts[at : at + AT_ONCE]) for at in _starts(texts, "embedding")])
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    known = {key(pair.a, pair.b) for pair in pairs}
    found: dict[tuple[str, str], Pair] = {}
    for start in _starts(texts, "comparing"):
        similar, places = index.search(vectors[start : start + AT_ONCE], NEIGHBOURS + 1)
        for row, column in zip(*np.nonzero(similar >= least), strict=True):
            pair = Pair(texts[start + row], texts[places[row, column]], False, "near")
            if pair.a != pair.b and key(pair.a, pair.b) not in known:
                found.setdefault(key(pair.a, pair.b), pair)
    return list(found.values())


def teach(pairs: Sequence[Pair], teachers: Sequence[Teacher], embedder: Embedder) -> np.ndarray:
    """The probability that each pair is the same, by all teachers together: `[len(pairs)]`."""
    told = []
    for start in _starts(pairs, "asking the teachers"):
        part = pairs[start : start + AT_ONCE]
        cosine = cosines(part, embedder)
        told.append(np.mean([teacher.log_odds(part, cosine) for teacher in teachers], axis=0))
    chance: np.ndarray = 1 / (1 + np.exp(-np.concatenate(told)))
    return chance


def _starts(items: Sequence[object], doing: str) -> Iterable[int]:
    return track(range(0, len(items), AT_ONCE), doing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=Path, required=True, help="the pairs that the teachers were trained on")
    parser.add_argument("--teachers", type=Path, nargs="+", required=True, help="what index.verifier.train wrote")
    parser.add_argument("--out", type=Path, required=True, help='lines {"a", "b", "chance"} (.jsonl)')
    parser.add_argument("--least", type=float, default=0.7, help="cosine of neighbours")
    parser.add_argument("--limit", type=int, default=70_000, help="neighbours at most")
    options = parser.parse_args()
    parts, embedder = hold_out(read_pairs(options.pairs)), load_embedder()
    cosine = cosines(parts.calibrate, embedder)
    teachers = [Teacher(adapter, parts, cosine) for adapter in options.teachers]
    found = near(parts.train, embedder, options.least)
    pairs = parts.train + random.Random(0).sample(found, min(options.limit, len(found)))
    with options.out.open("w") as out:
        for pair, chance in zip(pairs, teach(pairs, teachers, embedder), strict=True):
            out.write(json.dumps({"a": pair.a, "b": pair.b, "chance": round(float(chance), 4)}) + "\n")
    print(f"{options.out}: {len(pairs):,} pairs")


if __name__ == "__main__":
    main()
