"""Streams whose answers change, are junk, or come in a hard order: python -m tests.benchmarks.trust_streams FILE [options]

FILE has lines `{"text", "answer"}` in any order, as for `kvproxy calibrate --stream`; answers are labels. No two answers have
the same text, and the judge is perfect. The policy has the default settings; `--verifier none` replays it without `checked`.
`--vectors FILE.npy` keeps the embeddings between runs. `--questions N --labels K` takes for each order N of the questions with
K random labels, as in small traffic. Scenarios:

- `stable`: random order; the answers stay the same.
- `each-changes`: the answer to each label changes once, at a random time.
- `all-change`: all answers change at half time.
- `junk`: 2% of the fresh answers are junk, which equals nothing.
- `unique`: 2% of the questions, at random, need an answer of their own.
- `easy-first`: questions far from those of other labels come first.
"""

import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvproxy.index.evaluation.stream_evaluation import embed_texts, read_stream
from kvproxy.index.evaluation.stream_replay import (
    AnswersEqual,
    InMemoryObservations,
    ReplayOutcome,
    Stream,
    replay,
)
from kvproxy.index.models.embedder import load_embedder
from kvproxy.library.configured_cache import build_policy
from kvproxy.settings import CacheSettings
from tests.benchmarks.options import read_options

SCENARIOS = ("stable", "each-changes", "all-change", "junk", "unique", "easy-first")
_JUNK_SHARE = 0.02
_WINDOW = 500


@dataclass(frozen=True)
class Scenario:
    """A stream, and the judge if it differs from the truth."""

    stream: Stream
    judge: AnswersEqual | None = None


def make_scenario(name: str, texts: list[str], labels: list[str], vectors: np.ndarray, seed: int) -> Scenario:
    generator = random.Random(seed)
    order = list(range(len(texts)))
    generator.shuffle(order)
    if name == "easy-first":
        distances = other_label_cosines(labels, vectors)
        order = sorted(order, key=lambda line: float(distances[line]))
    texts, labels, vectors = [texts[line] for line in order], [labels[line] for line in order], vectors[order]
    count = len(texts)
    changes = {label: generator.randrange(count) for label in sorted(set(labels))}
    if name == "all-change":
        changes = dict.fromkeys(changes, count // 2)
    changed = name in ("each-changes", "all-change")
    answers = [f"{label} {changed and line >= changes[label]}" for line, label in enumerate(labels)]
    if name == "unique":
        answers = [f"own {line}" if generator.random() < _JUNK_SHARE else answer for line, answer in enumerate(answers)]
    junk = [name == "junk" and generator.random() < _JUNK_SHARE for _ in range(count)]

    def is_right(stored: int, asked: int) -> bool:
        return not junk[stored] and answers[stored] == answers[asked]

    def judge(one: int, other: int) -> bool:
        return not junk[one] and not junk[other] and answers[one] == answers[other]

    return Scenario(Stream(texts, answers, vectors, is_right), judge if name == "junk" else None)


def other_label_cosines(labels: list[str], vectors: np.ndarray) -> np.ndarray:
    """Return for each question the cosine of the nearest question with another label, `[n]`."""
    names = np.array(labels)
    found = np.empty(len(labels))
    for start in range(0, len(labels), 500):
        cosines = vectors[start : start + 500] @ vectors.T
        cosines[names[start : start + 500, None] == names[None]] = -1.0
        found[start : start + 500] = cosines.max(axis=1)
    return found


def worst_window(outcome: ReplayOutcome, size: int = _WINDOW) -> float:
    """Return the largest share of wrong answers in a row of `size` hits."""
    sums = np.cumsum(np.concatenate([[0], outcome.wrong[outcome.served]]))
    return float((sums[size:] - sums[:-size]).max() / size) if len(sums) > size else float("nan")


def small_part(labels: list[str], num_questions: int, num_labels: int, seed: int) -> list[int]:
    """Return the lines of random questions with random labels; 0 means all questions, or all labels."""
    generator = random.Random(seed)
    names = sorted(set(labels))
    chosen = set(generator.sample(names, min(num_labels or len(names), len(names))))
    lines = [line for line, label in enumerate(labels) if label in chosen]
    return sorted(generator.sample(lines, min(num_questions or len(lines), len(lines))))


def load_vectors(texts: list[str], path: Path | None) -> np.ndarray:
    if path is not None and path.exists():
        return np.asarray(np.load(path))
    vectors = embed_texts(texts, load_embedder(), lambda share: None)
    if path is not None:
        np.save(path, vectors)
    return vectors


def main() -> None:
    options = read_options(
        __doc__,
        "file",
        vectors=Path,
        scenarios=list(SCENARIOS),
        seed=0,
        orders=1,
        max_error=0.02,
        verifier="built-in",
        questions=0,
        labels=0,
    )
    settings = CacheSettings(max_error=options.max_error, verifier=options.verifier)
    lines = read_stream(options.file)
    texts, labels = [line.text for line in lines], [line.answer for line in lines]
    vectors = load_vectors(texts, options.vectors)
    embedder = load_embedder().name  # The verifier has probabilities for it.
    print(
        "| scenario | order | hits | wrong | worst cumulative | worst 500 hits | P-CHR AUC | CRR | hits per eighth | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in options.scenarios:
        for seed in range(options.seed, options.seed + options.orders):
            began = time.monotonic()
            part = small_part(labels, options.questions, options.labels, seed)
            scenario = make_scenario(
                name, [texts[line] for line in part], [labels[line] for line in part], vectors[part], seed
            )
            policy = build_policy(settings, InMemoryObservations(), embedder)
            found = replay(scenario.stream, policy, judge=scenario.judge, seed=seed)
            eighths = " ".join(f"{part.mean():.0%}" for part in np.array_split(found.served, 8))
            print(
                f"| {name} | {seed} | {found.hit_rate:.1%} | {found.wrong_share:.2%} | {found.worst_wrong_share:.2%}"
                f" | {worst_window(found):.1%} | {found.p_chr_auc:.3f} | {found.crr:.3f}"
                f" | {eighths} | {time.monotonic() - began:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
