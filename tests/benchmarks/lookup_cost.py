"""Cost of a semantic lookup on a processor without VNNI: the embedder, the verifier, and the policy.

python -m tests.benchmarks.lookup_cost STREAM .. [--questions 3000]

STREAM has lines `{"text", "answer"}`, as for `kvproxy calibrate --stream`. Questions in random order are replayed with the
default settings, with and without the cosine below which `checked` does not run the verifier. Pairs are those that the verifier
computes, for decisions and for comparisons. The instructions of the models are those in Valgrind, which emulates a processor
with AVX2 and without VNNI, and which other work does not change; `wide` is the embedder with products that are summed in 32
bits. Requires gcc, and Valgrind with its headers.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np

from kvproxy.index.evaluation.stream_evaluation import StreamLine, embed_stream, read_stream
from kvproxy.index.evaluation.stream_replay import InMemoryObservations, ReplayOutcome, Stream, replay
from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.models.minilm.weights import load_tokenizer, packaged_model
from kvproxy.index.models.verifier.built_in import MAX_TOKENS, BuiltInVerifier
from kvproxy.library.configured_cache import build_policy
from kvproxy.settings import CacheSettings
from tests.benchmarks.instructions import count_in_valgrind

_SAMPLE = 24


class CountingVerifier:
    """A verifier without a minimum cosine that records its pairs."""

    def __init__(self, verifier: BuiltInVerifier) -> None:
        self.verifier = verifier
        self.pairs: dict[tuple[str, str], None] = {}
        self.seconds = 0.0

    def can_read(self, text: str) -> bool:
        return self.verifier.can_read(text)

    def score(self, pairs: Sequence[tuple[str, str]], cosines: np.ndarray) -> np.ndarray:
        self.pairs |= {(min(pair), max(pair)): None for pair in pairs}
        began = time.thread_time()
        scores = self.verifier.score(pairs, cosines)
        self.seconds += time.thread_time() - began
        return scores


class BoundedVerifier(CountingVerifier):
    def least_cosine(self, level: float) -> float:
        return self.verifier.least_cosine(level)


@dataclass(frozen=True)
class Replay:
    """A replay, and the seconds of CPU time that it took without the verifier."""

    outcome: ReplayOutcome
    verifier: CountingVerifier
    seconds: float


def run(stream: Stream, verifier: CountingVerifier, embedder: str) -> Replay:
    policy = build_policy(CacheSettings(), InMemoryObservations(), embedder, load=lambda *_, **__: verifier)
    began = time.thread_time()
    outcome = replay(stream, policy)
    return Replay(outcome, verifier, time.thread_time() - began - verifier.seconds)


def measure(path: Path, questions: int) -> None:
    """Print the row of a stream."""
    embedder, generator = load_embedder(), random.Random(0)
    lines: list[StreamLine] = list({line.text: line for line in read_stream(path)}.values())
    generator.shuffle(lines)
    stream = embed_stream(lines[:questions], embedder, None, lambda share: None)
    verifier = BuiltInVerifier.load(embedder.name)
    bounded = run(stream, BoundedVerifier(verifier), embedder.name)
    full = run(stream, CountingVerifier(verifier), embedder.name)
    count, pairs = len(stream.texts), list(bounded.verifier.pairs)
    equal = int((bounded.outcome.served & full.outcome.served).sum())
    encode = load_tokenizer(packaged_model(), MAX_TOKENS).encode
    sample = {
        "questions": generator.sample(list(stream.texts), _SAMPLE),
        "pairs": generator.sample(pairs, min(len(pairs), _SAMPLE + 1)),
    }
    totals = count_in_valgrind("tests.benchmarks.in_process_lookups", text=json.dumps(sample))
    narrow, wide = (total / _SAMPLE / 1e6 for total in totals[:2])
    scored = totals[2] / (len(sample["pairs"]) - 1) / 1e6
    shares = [len(each.verifier.pairs) / count for each in (full, bounded)]
    before, after = wide + shares[0] * scored, narrow + shares[1] * scored
    tokens = [mean(len(encode(text).ids) for text in stream.texts), mean(len(encode(*pair).ids) for pair in pairs)]
    print(
        f"| {path.stem} | {tokens[0]:.1f}, {tokens[1]:.1f} | {wide:.1f}, {narrow:.1f}, {scored:.1f}"
        f" | {shares[0]:.2f}, {shares[1]:.2f} | {before / after:.2f} | {bounded.seconds / count * 1e3:.2f}"
        f" | {equal} of {int(full.outcome.served.sum())} | {int(full.outcome.wrong.sum())}, {int(bounded.outcome.wrong.sum())} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", type=Path, nargs="+")
    parser.add_argument("--questions", type=int, default=3_000)
    options = parser.parse_args()
    print(
        "| stream | tokens: question, pair | million instructions: embedder wide, embedder, pair"
        " | pairs per lookup: all, computed | models before / after | policy, ms of CPU | equal hits | wrong hits |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for path in options.streams:
        measure(path, options.questions)


if __name__ == "__main__":
    main()
