"""The packaged embedder and the verifier in ONNX Runtime against bare sentence-transformers, in one run, interleaved.

python -m tests.benchmarks.embedding [--repeat 50] [--texts FILE] [--sample 2000] [--busy]

With `--texts`, lines `{"a", "b", ...}` as `kvproxy calibrate` reads them, it also measures how far the neighbours of a
sample of questions stay the same in 8 bits. Every part that does not say otherwise computes on the calling thread, so
OMP_NUM_THREADS=1 is set; `--busy` counts that thread's own seconds in place of the clock's, for a machine that others
compute on too.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from kvproxy.index.evaluation.labelled_pairs import read_pairs
from kvproxy.index.models.embedder import Embedder, load_embedder
from kvproxy.index.models.minilm.embedder import MiniLMEmbedder
from kvproxy.index.models.minilm.weights import packaged_model
from kvproxy.index.models.verifier.built_in import BuiltInVerifier
from tests.benchmarks.timing import interleave, report

ONE = "How do I reset the password of my account on this website?"
OTHER = "What is the way to change my account password on the website?"
LONG = " ".join([ONE] * 14)
TORCH, FLOAT, INTEGERS = "sentence-transformers (torch)", "ONNX Runtime, float32", "ONNX Runtime, 8 bits"
ONE_PAIR, FIVE_PAIRS = "verifier, a pair of 12 words each", "verifier, five such pairs"


def works(parts: dict[str, Callable[[], object]], busy: bool) -> dict[str, Callable[[], float]]:
    """Each part, timed by itself."""
    clock = time.thread_time if busy else time.perf_counter

    def timed(part: Callable[[], object]) -> Callable[[], float]:
        def work() -> float:
            began = clock()
            part()
            return clock() - began

        return work

    return {name: timed(part) for name, part in parts.items()}


def neighbours(vectors: np.ndarray, count: int) -> np.ndarray:
    """The nearest others of each vector, `[n, count]`, nearest first."""
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -1)
    nearest: np.ndarray = np.argsort(-similarity, axis=1)[:, :count]
    return nearest


def compare(embedders: dict[str, Embedder], path: Path, sample: int) -> None:
    """Print how far 8-bit vectors and their neighbours differ from float32's."""
    texts = sorted({text for pair in islice(read_pairs(path), sample) for text in (pair.a, pair.b)})[:sample]
    exact, near = embedders[FLOAT].embed(texts), embedders[INTEGERS].embed(texts)
    cosine = (exact * near).sum(axis=1)
    error = np.abs(exact @ exact.T - near @ near.T)
    wanted, found = neighbours(exact, 5), neighbours(near, 5)
    first = (wanted[:, 0] == found[:, 0]).mean()
    five = np.mean([len(set(one) & set(other)) / 5 for one, other in zip(wanted, found, strict=True)])
    held = (found == wanted[:, :1]).any(axis=1).mean()
    print(f"\n8 bits against float32, {len(texts):,} questions")
    print(f"cosine of a vector to its own: mean {cosine.mean():.5f}, least {cosine.min():.5f}")
    print(f"error of a similarity: mean {error.mean():.4f}, 99% {np.quantile(error, 0.99):.4f}, most {error.max():.4f}")
    print(
        f"nearest neighbour the same: {first:.4f}; among the five nearest: {held:.4f}; of the five nearest: {five:.4f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--busy", action="store_true", help="count the thread's own seconds")
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--sample", type=int, default=2000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    embedders: dict[str, Embedder] = {
        TORCH: load_embedder(str(packaged_model())),
        FLOAT: MiniLMEmbedder(integers=False),
        INTEGERS: MiniLMEmbedder(),
    }
    for title, text in (("one question of 12 words", ONE), ("one text of 168 words", LONG)):
        parts = {name: partial(embedder.embed, [text]) for name, embedder in embedders.items()}
        interleave(works(parts, options.busy), 3)
        report(title, interleave(works(parts, options.busy), options.repeat), base=TORCH)
    parts = {
        INTEGERS: partial(embedders[INTEGERS].embed, [ONE]),
        ONE_PAIR: partial(BuiltInVerifier.load(cores=1).score, [(ONE, OTHER)], np.ones(1)),
        FIVE_PAIRS: partial(BuiltInVerifier.load(cores=1).score, [(ONE, OTHER)] * 5, np.ones(5)),
        f"{FIVE_PAIRS}, all cores": partial(BuiltInVerifier.load().score, [(ONE, OTHER)] * 5, np.ones(5)),
    }
    report("the verifier", interleave(works(parts, options.busy), options.repeat), base=INTEGERS)
    if options.texts:
        compare(embedders, options.texts, options.sample)


if __name__ == "__main__":
    main()
