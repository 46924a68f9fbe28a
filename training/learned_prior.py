"""Fits the initial weights of the learned policy's error model (`index/policies/learned/error_model.py`) to a labelled stream.

python -m training.learned_prior STREAM.jsonl.gz
"""

import argparse
import random
from pathlib import Path

import numpy as np

from kvproxy.index.evaluation.stream_evaluation import embed_stream, read_stream
from kvproxy.index.evaluation.stream_replay import StoredQuestions, Stream
from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.policies.learned.error_model import FEATURES, NUM_NEIGHBOURS, compute_features

_QUESTIONS = 300  # The prior counts as much as this number of observed questions.
_MIN_PRECISION = 0.1  # The precision of a weight without observations.


def labelled_features(stream: Stream, seed: int, dropped: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of each question, and whether the nearest stored answer was right.

    A share `dropped` of the questions with a certain answer is not stored, because a cache serves such questions.
    """
    chance, stored = random.Random(seed).random, StoredQuestions(stream)
    features, rights = [], []
    for line in range(len(stream.texts)):
        places, cosines = stored.search(line, NUM_NEIGHBOURS)
        is_certain = False
        if places:
            classes, questions = zip(
                *((stored.classes[place], stream.texts[int(stored.lines[place])]) for place in places), strict=True
            )
            vectors = [stream.vectors[stored.lines[place]] for place in places]
            found = compute_features(cosines, classes, stream.texts[line], questions, vectors)
            features.append(found)
            rights.append(stream.answers_equal(int(stored.lines[places[0]]), line))
            is_certain = found[FEATURES.index("rivals")] > 0 and chance() < dropped
        if not is_certain:
            stored.add(line, stream.answers[line])
    return np.array(features), np.array(rights, dtype=np.float64)


def fit_weights(features: np.ndarray, rights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit weights by Newton's method, as in `ErrorModel.learn`; return them and their precision matrix."""
    weights = np.zeros(features.shape[1])
    precision = np.eye(len(weights))
    for _ in range(100):
        probability = 1 / (1 + np.exp(-features @ weights))
        weight = probability**2
        precision = features.T @ (features * (weight * probability * (1 - probability))[:, None]) + np.eye(len(weights))
        step = np.linalg.solve(precision, features.T @ (weight * (rights - probability)) - weights)
        weights = weights + step
    return weights, precision


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stream", type=Path)
    options = parser.parse_args()
    stream = embed_stream(read_stream(options.stream), load_embedder(), None, lambda share: None)
    parts = []
    for seed, dropped in ((0, 0.8), (3, 0.5)):
        order = list(range(len(stream.texts)))
        random.Random(seed).shuffle(order)
        parts.append(labelled_features(stream.reordered(order), seed, dropped))
    features, rights = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
    weights, precision = fit_weights(features, rights)
    covariance = np.linalg.inv(precision * (_QUESTIONS / len(features)) + _MIN_PRECISION * np.eye(len(weights)))
    print("WEIGHTS =", tuple(weights.round(3).tolist()))
    print("COVARIANCE =", tuple(tuple(row) for row in covariance.round(3).tolist()))


if __name__ == "__main__":
    main()
