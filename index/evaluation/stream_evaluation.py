"""Replays a file of questions with each semantic policy."""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvproxy.index.errors import ImportFailed
from kvproxy.index.evaluation.labelled_pairs import read_json_lines
from kvproxy.index.evaluation.stream_replay import AnswersEqual, ReplayOutcome, Stream, replay
from kvproxy.index.models.embedder import Embedder
from kvproxy.index.policies.learned.answer_classes import text_digest
from kvproxy.index.policies.learned.answer_facts import answers_equal, embedded_part
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.index.policies.policy import LearningStatus, Policy
from kvproxy.index.policies.threshold import ThresholdPolicy

EQUAL_TEXTS = "learned, equal texts"
"""The policy `learned` if equal answers have equal texts, so that no comparison is needed to find them."""
Progress = Callable[[float], None]
_BATCH = 256
_CURVE_STEP = 100
_THRESHOLDS = tuple(round(float(level), 2) for level in np.arange(0.99, 0.595, -0.01))
_MAX_WRONG_FACTOR = 4


@dataclass(frozen=True, slots=True)
class StreamLine:
    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class StreamReport:
    """The results of a replay of a stream of questions, by policy. In `learned`, no two answers have the same text.

    Attributes:
        level: the best threshold for this stream, which the policy `threshold` uses; None if each has too many wrong answers.
        learning: state of `learned` after the stream.
        random_orders: the results of `learned` for the questions in random orders.
    """

    requests: int
    max_error: float
    outcomes: dict[str, ReplayOutcome]
    level: float | None
    learning: LearningStatus
    random_orders: Sequence[ReplayOutcome] = field(default_factory=tuple)

    @property
    def best(self) -> str | None:
        """The policy with the highest hit rate within the bound; None if none of them serves anything within it."""
        rates = {
            name: outcome.hit_rate
            for name, outcome in self.outcomes.items()
            if name != EQUAL_TEXTS and outcome.wrong_share <= self.max_error and outcome.hit_rate
        }
        return max(rates, key=rates.__getitem__, default=None)

    def document(self) -> dict[str, Any]:
        policies: dict[str, dict[str, Any]] = {
            name: _outcome_document(outcome) for name, outcome in self.outcomes.items()
        }
        policies["learned"] |= {"most_wrong": self.learning.most_wrong, "by_checked": self.learning.by_checked}
        policies["threshold"]["level"] = self.level
        document: dict[str, Any] = {"requests": self.requests, "max_error": self.max_error, "policies": policies}
        document["best"] = self.best
        if self.random_orders:
            document["orders"] = {
                "count": len(self.random_orders),
                "within": sum(outcome.worst_wrong_share <= self.max_error for outcome in self.random_orders),
                "hit_rate": statistics.median(outcome.hit_rate for outcome in self.random_orders),
                "wrong_share": statistics.median(outcome.wrong_share for outcome in self.random_orders),
                "worst": max(outcome.worst_wrong_share for outcome in self.random_orders),
            }
        return document


def _outcome_document(outcome: ReplayOutcome) -> dict[str, Any]:
    return {
        "hit_rate": outcome.hit_rate,
        "wrong_share": outcome.wrong_share,
        "worst": outcome.worst_wrong_share,
        "p_chr_auc": outcome.p_chr_auc,
        "curve": [
            {"requests": requests, "served": served, "wrong": wrong}
            for requests, served, wrong in cumulative_counts(outcome)
        ],
    }


def cumulative_counts(outcome: ReplayOutcome) -> list[tuple[int, int, int]]:
    """Return the counts of requests, served answers, and wrong answers up to every hundredth request."""
    served, wrong = np.cumsum(outcome.served), np.cumsum(outcome.wrong)
    ends = [*range(_CURVE_STEP, len(served), _CURVE_STEP), len(served)]
    return [(end, int(served[end - 1]), int(wrong[end - 1])) for end in ends]


def read_stream(path: Path) -> list[StreamLine]:
    """Read a stream from a file with lines such as `{"text": .., "answer": ..}`; see `read_json_lines`."""
    lines = list(read_json_lines(path, StreamLine, '{"text": "How do I ..", "answer": ".."}'))
    if not lines:
        raise ImportFailed(f'{path} holds no lines {{"text", "answer"}}')
    return lines


def embed_stream(
    lines: Sequence[StreamLine], embedder: Embedder, min_cosine: float | None, progress: Progress
) -> Stream:
    """Embed the questions of a stream. Answers are equal if their words are, or by the judge `similarity` with `min_cosine`."""
    texts, answers = [line.text for line in lines], [line.answer for line in lines]
    vectors = embed_texts(texts, embedder, progress)
    digests = [text_digest(answer) for answer in answers]
    of_answers = None if min_cosine is None else embed_texts([*map(embedded_part, answers)], embedder, progress)

    def same(one: int, other: int) -> bool | None:
        if digests[one] == digests[other] or of_answers is None or min_cosine is None:
            return digests[one] == digests[other]
        return answers_equal(answers[one], answers[other], float(of_answers[one] @ of_answers[other]), min_cosine)

    return Stream(texts, answers, vectors, same)


def embed_texts(texts: Sequence[str], embedder: Embedder, progress: Progress) -> np.ndarray:
    once = sorted(set(texts), key=len)
    parts = []
    for start in range(0, len(once), _BATCH):
        parts.append(embedder.embed(once[start : start + _BATCH]))
        progress(min(1.0, (start + _BATCH) / len(once)))
    places = {text: place for place, text in enumerate(once)}
    return np.concatenate(parts)[[places[text] for text in texts]]


def best_threshold(stream: Stream, max_error: float, progress: Progress) -> tuple[float | None, ReplayOutcome]:
    """Return the threshold with the most hits among those within `max_error` wrong answers, if any, and its results."""
    level, best = None, ReplayOutcome(np.zeros(len(stream.texts), bool), np.zeros(len(stream.texts), bool))
    for place, threshold in enumerate(_THRESHOLDS):
        outcome = replay(stream, _NearestOnlyPolicy(threshold))
        if outcome.wrong_share <= max_error and outcome.hit_rate > best.hit_rate:
            level, best = threshold, outcome
        if outcome.wrong_share > _MAX_WRONG_FACTOR * max_error and outcome.wrong.sum() > 50:
            break
        progress(place / len(_THRESHOLDS))
    return level, best


class _NearestOnlyPolicy(ThresholdPolicy):
    num_neighbours = 1

    def __init__(self, threshold: float) -> None:
        super().__init__(threshold, guards=())


def add_judge_errors(judge: AnswersEqual, share: float, seed: int) -> AnswersEqual:
    chance = random.Random(seed).random

    def judged(one: int, other: int) -> bool | None:
        verdict = judge(one, other)
        return None if verdict is None else verdict != (chance() < share)

    return judged


def replay_policies(
    stream: Stream,
    learned: Callable[[], LearnedPolicy],
    checked: Policy | None,
    max_error: float,
    *,
    orders: int = 0,
    judge_error: float = 0.0,
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> StreamReport:
    """Replay a stream with the policies `learned`, `checked`, and `threshold`.

    Args:
        learned: creates a `learned` policy that has no observations yet.
        orders: number of further replays with `learned`, each in a random order.
        judge_error: share of comparisons of answers whose result is inverted, to simulate errors.
    """

    def ask(order: Stream, policy: LearnedPolicy, seed: int, what: str) -> ReplayOutcome:
        judge = add_judge_errors(order.answers_equal, judge_error, seed) if judge_error else None
        return replay(order, policy, judge=judge, seed=seed, progress=lambda share: progress(what, share))

    policy = learned()
    outcomes = {"learned": ask(stream, policy, 0, "learned")}
    learning = policy.status("")
    if not judge_error:
        outcomes[EQUAL_TEXTS] = replay(
            stream, learned(), texts_differ=False, progress=lambda share: progress(EQUAL_TEXTS, share)
        )
    if checked is not None:
        outcomes["checked"] = replay(stream, checked, progress=lambda share: progress("checked", share))
    level, outcomes["threshold"] = best_threshold(stream, max_error, lambda share: progress("threshold", share))
    others = []
    for seed in range(1, orders + 1):
        order = list(range(len(stream.texts)))
        random.Random(seed).shuffle(order)
        others.append(ask(stream.reordered(order), learned(), seed, f"order {seed}"))
    return StreamReport(len(stream.texts), max_error, outcomes, level, learning, others)
