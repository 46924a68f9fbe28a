"""Replays a stream of questions, in memory, with one policy."""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvproxy.index.policies.learned.answer_classes import assign_class, run_comparisons, text_digest
from kvproxy.index.policies.learned.learned_policy import LearnedPolicy
from kvproxy.index.policies.policy import Decision, Neighbour, Policy, PolicyResult
from kvproxy.index.store.observations import Observation, Observations

AnswersEqual = Callable[[int, int], bool | None]
"""Returns whether the answers of two questions are equal; None if undecided. The arguments are indexes in the stream."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Questions in the order of arrival, with their true answers. `vectors` are their unit vectors, `[n, dim]`."""

    texts: Sequence[str]
    answers: Sequence[str]
    vectors: np.ndarray
    answers_equal: AnswersEqual

    def reordered(self, order: Sequence[int]) -> "Stream":
        return Stream(
            [self.texts[line] for line in order],
            [self.answers[line] for line in order],
            self.vectors[order],
            lambda one, other: self.answers_equal(order[one], order[other]),
        )


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """Arrays with a value for each request: whether an answer was served, and whether that answer was wrong.

    `scores` has the highest score of a stored answer, or -1 if none may be served; `right`: the answer with this score is right.
    """

    served: np.ndarray
    wrong: np.ndarray
    scores: np.ndarray = field(default_factory=lambda: np.empty(0))
    right: np.ndarray = field(default_factory=lambda: np.empty(0))

    @property
    def hit_rate(self) -> float:
        return float(self.served.mean()) if len(self.served) else 0.0

    @property
    def wrong_share(self) -> float:
        return float(self.wrong.sum() / max(1, self.served.sum()))

    @property
    def worst_wrong_share(self) -> float:
        """The largest share of wrong answers among the first n hits, for n from 500 on; `wrong_share` if there are fewer hits."""
        wrong = self.wrong[self.served]
        shares = np.cumsum(wrong) / np.arange(1, len(wrong) + 1)
        return float(shares[_FROM - 1 :].max()) if len(wrong) >= _FROM else self.wrong_share

    @property
    def p_chr_auc(self) -> float:
        return precision_hit_ratio_area(self.scores, self.right)

    @property
    def crr(self) -> float:
        """P-CHR AUC / PR-AUC (calibration retention rate, arXiv 2606.19719); NaN if no answer is right."""
        area = precision_recall_area(self.scores, self.right)
        return self.p_chr_auc / area if area else float("nan")


def precision_hit_ratio_area(scores: np.ndarray, right: np.ndarray) -> float:
    """Return the area under the curve of precision against hit ratio (P-CHR AUC, arXiv 2606.19719).

    For each request, `scores` has the score of its best answer (never served if negative), and `right` whether this is right.
    """
    order = np.argsort(-scores, kind="stable")
    precision = np.cumsum(right[order]) / np.arange(1, len(scores) + 1)
    return float(precision[scores[order] >= 0].sum() / max(1, len(scores)))


def precision_recall_area(scores: np.ndarray, right: np.ndarray) -> float:
    """Return the area under the curve of precision against recall (PR-AUC), of the same arrays; 0 if no answer is right."""
    order = np.argsort(-scores, kind="stable")
    found = right[order].astype(bool) & (scores[order] >= 0)
    precision = np.cumsum(found) / np.arange(1, len(scores) + 1)
    return float(precision[found].sum() / max(1, found.sum()))


_FROM = 500
_BLOCK = 128


class StoredQuestions:
    def __init__(self, stream: Stream) -> None:
        self._vectors = np.empty_like(stream.vectors)
        self.lines = np.empty(len(stream.texts), dtype=np.int64)
        self.classes: list[str] = []
        self._members: defaultdict[str, list[int]] = defaultdict(list)
        self._stream = stream
        self._block = range(0)
        self._cosines = np.empty((0, 0), dtype=np.float32)

    def search(self, line: int, limit: int) -> tuple[list[int], list[float]]:
        """Return the indexes and cosines of the stored questions that are nearest to question `line` of the stream."""
        if line not in self._block:
            self._block = range(line, min(line + _BLOCK, len(self._stream.vectors)))
            self._cosines = self._stream.vectors[self._block] @ self._vectors[: len(self.classes)].T
        computed = self._cosines[line - self._block.start]
        fresh = self._vectors[len(computed) : len(self.classes)] @ self._stream.vectors[line]
        cosines = np.concatenate([computed, fresh])
        limit = min(limit, len(cosines))
        near = np.argpartition(-cosines, limit - 1)[:limit] if limit else np.empty(0, dtype=np.int64)
        near = near[np.argsort(-cosines[near], kind="stable")]
        return near.tolist(), cosines[near].tolist()

    def remove(self, index: int) -> None:
        self._vectors[index] = 0.0
        if index < self._cosines.shape[1]:
            self._cosines[:, index] = 0.0

    def members(self, answer_class: str) -> Sequence[int]:
        return self._members.get(answer_class, ())

    def merge(self, merged: Sequence[str], answer_class: str) -> None:
        for name in merged:
            members = self._members.pop(name)
            self._members[answer_class] += members
            for place in members:
                self.classes[place] = answer_class

    def add(self, line: int, answer_class: str) -> None:
        place = len(self.classes)
        self._vectors[place] = self._stream.vectors[line]
        self.lines[place] = line
        self.classes.append(answer_class)
        self._members[answer_class].append(place)


class InMemoryObservations(Observations):
    def __init__(self) -> None:
        self._rows: list[Observation] = []

    def add(self, observations: Sequence[Observation]) -> None:
        self._rows += [
            replace(observation, number=len(self._rows) + place) for place, observation in enumerate(observations, 1)
        ]

    def list_since(self, namespace: str, after_number: int, limit: int) -> list[Observation]:
        return self._rows[after_number : after_number + limit]

    def snapshot(self, namespace: str) -> str | None:
        return None

    def save_snapshot(self, namespace: str, last_number: int, state: str) -> None: ...

    def last_pruned_number(self, namespace: str) -> int:
        return 0


def replay(
    stream: Stream,
    policy: Policy,
    *,
    judge: AnswersEqual | None = None,
    seed: int = 0,
    texts_differ: bool = True,
    progress: Callable[[float], None] = lambda share: None,
) -> ReplayOutcome:
    """Replay a stream with a policy. A question without a hit is stored, and `learned` learns from its true answer.

    Args:
        judge: compares answers for the policy `learned`; None uses `stream.answers_equal`.
        seed: seed of the random decisions about exploration.
        texts_differ: no two answers have the same text, as with sampled answers, so that only the judge finds equal ones.
    """
    chance = random.Random(seed).random
    stored = StoredQuestions(stream)
    count = len(stream.texts)
    served, wrong, right = (np.zeros(count, bool) for _ in range(3))
    scores = np.full(count, -1.0)
    for line in range(count):
        places, cosines = stored.search(line, policy.num_neighbours)
        classes = [stored.classes[place] for place in places]
        neighbours = [
            Neighbour(stream.texts[stored.lines[place]], cosine, name, stream.vectors[stored.lines[place]])
            for place, cosine, name in zip(places, cosines, classes, strict=True)
        ]
        result = policy.decide(stream.texts[line], neighbours) if neighbours else PolicyResult([], None)
        if neighbours:
            ranked = [_score(*pair, policy) for pair in zip(result.decisions, neighbours, strict=True)]
            best = int(np.argmax(ranked))
            scores[line], right[line] = ranked[best], bool(stream.answers_equal(int(stored.lines[places[best]]), line))
        is_hit = result.chosen is not None and chance() >= result.exploration_share
        if isinstance(policy, LearnedPolicy):
            policy.note_decision("", result, is_hit=is_hit)
        if result.chosen is not None and is_hit:
            chosen = int(stored.lines[places[result.chosen]])
            served[line], wrong[line] = True, stream.answers_equal(chosen, line) is False
            if result.record is not None and isinstance(policy, LearnedPolicy):
                policy.record_served(
                    "",
                    result.record.risk,
                    by_checked=bool(result.record.checked),
                    answer_class=classes[result.chosen],
                )
        else:
            joined = _learn_answer_class(
                stream, policy, stored, line, places, neighbours, result, judge, texts_differ=texts_differ
            )
            stored.add(line, joined)
        if line % 100 == 0:
            progress(line / count)
    return ReplayOutcome(served, wrong, scores, right)


def _score(decision: Decision, neighbour: Neighbour, policy: Policy) -> float:
    if decision.error is not None:
        return 1 - decision.error
    if decision.score is not None:
        return decision.score
    return max(0.0, neighbour.similarity) if policy.name == "threshold" and decision.guard is None else -1.0


def _learn_answer_class(
    stream: Stream,
    policy: Policy,
    stored: StoredQuestions,
    line: int,
    places: Sequence[int],
    neighbours: Sequence[Neighbour],
    result: PolicyResult,
    judge: AnswersEqual | None,
    *,
    texts_differ: bool,
) -> str:
    classes = [neighbour.answer for neighbour in neighbours]
    own = f"line {line}" if texts_differ or judge is not None else text_digest(stream.answers[line])
    record = result.record
    compare: AnswersEqual = judge or stream.answers_equal
    if record is None or not isinstance(policy, LearnedPolicy):
        return own
    judged = int(stored.lines[places[record.index]])
    question, cached_question = stream.texts[line], stream.texts[judged]
    checked = policy.is_accepted_by_checked(question, neighbours[record.index], record)

    suspects = [name for name in policy.suspected_successors("", classes[record.index]) if stored.members(name)]
    lines = [int(stored.lines[place]) for place in (*places, *(stored.members(name)[0] for name in suspects))]

    def equal(place: int, other: int | None) -> bool | None:
        return compare(lines[place], line if other is None else lines[other])

    assignment = run_comparisons(assign_class(record.index, [*classes, *suspects], len(classes)), equal)
    joined = assignment.joined or own
    is_new = not stored.members(joined)
    if assignment.is_outlier:
        stored.remove(places[record.index])
    stored.merge(assignment.merged, joined)
    if assignment.right is None:
        return joined
    policy.learn(
        [
            Observation(
                f"line {judged}",
                assignment.right,
                "answer",
                result.chosen is not None,
                0.0,
                answer=classes[record.index],
                features=record.features,
                error=record.error,
                chance=result.exploration_share if result.chosen is not None else 1.0,
                vetoes=policy.vetoes(question, cached_question),
                joined=joined,
                checked=checked,
                repeat=question == cached_question,
                merged=assignment.merged,
                is_new=is_new,
            )
        ]
    )
    return joined
