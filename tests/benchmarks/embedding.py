"""The packaged embedder and the verifier in ONNX Runtime, beside sentence-transformers, on one thread.

OMP_NUM_THREADS=1 python -m tests.benchmarks.embedding [--rounds 50]
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.models.minilm.embedder import MiniLMEmbedder
from kvproxy.index.models.minilm.weights import packaged_model
from kvproxy.index.models.verifier.built_in import BuiltInVerifier
from tests.benchmarks.options import read_options
from tests.benchmarks.timing import interleave, report

QUESTION = "How do I reset the password of my account on this website?"
REWORDED = "What is the way to change my account password on the website?"
TORCH, INTEGERS = "sentence-transformers (torch)", "ONNX Runtime, 8 bits"


def main() -> None:
    rounds = read_options(__doc__, rounds=50).rounds
    torch.set_num_threads(1)
    embedders = {
        TORCH: load_embedder(str(packaged_model())),
        "ONNX Runtime, float32": MiniLMEmbedder(int8=False),
        INTEGERS: MiniLMEmbedder(),
        "multilingual, 8 bits": load_embedder("multilingual"),
    }
    for title, text in (("a question of 12 words", QUESTION), ("a text of 168 words", " ".join([QUESTION] * 14))):
        works = {name: partial(run, embedder.embed, [text]) for name, embedder in embedders.items()}
        interleave(works, 3)
        report(title, interleave(works, rounds), TORCH)
    verifier, pair = BuiltInVerifier.load(), (QUESTION, REWORDED)
    works = {
        INTEGERS: partial(run, embedders[INTEGERS].embed, [QUESTION]),
        "verifier, one pair": partial(run, verifier.score, [pair], np.ones(1)),
        "verifier, five pairs, all cores": partial(run, verifier.score, [pair] * 5, np.ones(5)),
    }
    report("the verifier", interleave(works, rounds), INTEGERS)


def run(function: Callable[..., object], *arguments: object) -> None:
    """Call a function and drop its result, so that `interleave` measures the time."""
    function(*arguments)


if __name__ == "__main__":
    main()
