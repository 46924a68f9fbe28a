"""The interface of policies, which decide whether to serve a response to a similar question."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol

from kvproxy.index.evaluation.confidence_intervals import wilson_interval

if TYPE_CHECKING:
    import numpy as np

    from kvproxy.index.policies.guards import Guard

PolicyName = Literal["learned", "checked", "threshold"]
PolicyVerdict = Literal["accepted", "low similarity", "vetoed", "low probability", "uncertain", "not compared"]
"""A verdict of a policy. The lookup has more."""
Verdict = Literal[PolicyVerdict, "explored", "expired", "rejected", "refusal limit"]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A stored question, without the earlier turns of its conversation, and its cosine similarity to the current question.

    `answer` is the class of its answer (see `answer_classes`); empty if unknown. `vector` is the question's unit vector, `[dim]`.
    """

    prompt: str
    similarity: float
    answer: str = ""
    vector: "np.ndarray | None" = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that a request sets for the policy's decision. They can only be stricter; None keeps the policy's own limit."""

    min_similarity: float | None = None
    min_probability: float | None = None
    max_error: float | None = None

    @property
    def least_cosine(self) -> float:
        """Infinite if `min_similarity` is 1, because the computed cosine of different questions may be 1 or just above it."""
        least = self.min_similarity or 0.0
        return math.inf if least >= 1 else least


_MEANINGS: dict[Verdict, str] = {
    "accepted": "one answer fits both",
    "low similarity": "not similar enough",
    "low probability": "the verifier doubts that one answer fits both",
    "uncertain": "too little is known about this answer",
    "explored": "forwarded in order to learn",
    "expired": "its response expired",
    "rejected": "a person rejected it",
    "refusal limit": "too many similar questions were refused, so it has exact hits only for some hours",
    "not compared": "a nearer one decided",
}


def describe_verdict(verdict: Verdict, guard: str | None, differences: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a verdict in words. `differences` has those of guards that users added, by name."""
    from kvproxy.index.policies.guards import DIFFERENCES

    if verdict != "vetoed" or guard is None:
        return _MEANINGS.get(verdict, "the guards found a difference")
    return differences.get(guard) or DIFFERENCES.get(guard) or f"the guard {guard} found a difference"


def verdict_token(verdict: Verdict, guard: str | None) -> str:
    """Return a verdict as one word, such as `veto-numbers` or `low-similarity`."""
    return f"veto-{guard}" if verdict == "vetoed" else verdict.replace(" ", "-")


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on one neighbour.

    Attributes:
        guard: name of the guard that vetoed, if any.
        score: the verifier's probability that one answer serves both questions, or the cosine for the policy `threshold`.
        error: the policy `learned`'s estimated probability that the neighbour's answer is wrong.
    """

    verdict: Verdict
    guard: str | None = None
    score: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class LearningRecord:
    """Facts about one neighbour, which become part of an `Observation` if its answer is compared with a fresh answer.

    Attributes:
        index: the neighbour's index in `PolicyResult.decisions`.
        features, error: inputs (see `compute_features`) and result of the error model.
        risk: number that a hit adds to `ServingLevel.risk`.
        checked: whether the policy `checked` accepts the neighbour; None if unknown.
    """

    index: int
    features: tuple[float, ...] | None
    error: float
    risk: float = 0.0
    checked: bool | None = None


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """The decisions on all neighbours of a question.

    Attributes:
        chosen: index of the accepted neighbour, if any.
        exploration_share: the probability with which the caller forwards the request although a neighbour is accepted.
        record: facts for a later `Observation`; None if the policy does not learn from this question.
    """

    decisions: list[Decision]
    chosen: int | None
    exploration_share: float = 0.0
    record: LearningRecord | None = None


def checked_interval(equal: int, different: int, undecided: int) -> tuple[float, float]:
    """Return the 95% interval of the share of wrong answers; undecided comparisons count as equal, then as different."""
    total = equal + different + undecided
    return wilson_interval(different, total)[0], wilson_interval(different + undecided, total)[1]


MIN_INTERVAL = 10
"""Comparisons below which `checked_interval` is too wide to be stated."""
MIN_COMPARED = 100
"""Comparisons that prove the estimates of the policy `learned`, if their sum does not reach `MIN_EXPECTED_ERRORS` earlier."""
JUDGE_BY_MODEL = 'set cache.judge = "model"'
NEVER_EQUAL = f"answers are hardly ever judged equal, so learned cannot learn: {JUDGE_BY_MODEL}"
_MIN_CONTRADICTED = 5
_MIN_UNDECIDED = 30
_MAX_EQUAL_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class LearningStatus:
    """A report on the learned policy in one namespace.

    Attributes:
        observations: number of comparisons between fresh and stored answers.
        serves: the policy's estimates decide, with or without `checked`.
        level: maximum estimated error of a served answer.
        expected_wrong, most_wrong: expected number of wrong answers among the `served` answers, and an upper bound: with 90%
            probability for those that `checked` did not accept, plus the upper end of `checked_interval` for those that it
            accepted. None and `served` if no comparison estimates the errors.
        would_serve: share of recent requests, served or not, whose estimated error is within `level`.
        doubted: number of classes of equal answers (see `answer_classes`) whose right answer may have changed.
        equal, undecided: numbers of comparisons that found equal answers, and that the judge could not decide.
        contradicted: number of compared hits of `checked` that differed, if hardly any were equal; otherwise 0.
        by_checked: number of served answers that `checked` alone accepted.
        checked_equal, checked_different, checked_undecided: results of comparisons of answers that `checked` accepts.
        serves_checked: answers that `checked` accepts may be served, whatever their estimated error.
    """

    observations: int
    serves: bool
    level: float
    served: int
    expected_wrong: float | None
    most_wrong: int
    max_error: float
    would_serve: float
    doubted: int
    equal: int = 0
    undecided: int = 0
    contradicted: int = 0
    by_checked: int = 0
    checked_equal: int = 0
    checked_different: int = 0
    checked_undecided: int = 0
    serves_checked: bool = True

    @property
    def warning(self) -> str | None:
        return learning_warning(self.contradicted, self.equal, self.undecided)


def learning_warning(contradicted: int, equal: int, undecided: int) -> str | None:
    """Return a sentence with the fix if answers are never judged equal; otherwise None. See `LearningStatus` for the numbers."""
    if contradicted >= _MIN_CONTRADICTED:
        return (
            f"{contradicted:,} fresh answers to questions that `checked` accepts differ from the cached ones, and hardly any are"
            f" equal, so the model contradicts itself, or hits are wrong: {NEVER_EQUAL}"
        )
    if undecided < _MIN_UNDECIDED or equal > _MAX_EQUAL_SHARE * (equal + undecided):
        return None
    return f"of {equal + undecided:,} answers that may equal a cached one, {equal:,} were judged equal: {NEVER_EQUAL}"


@dataclass(frozen=True, slots=True)
class LearningSummary:
    """`LearningStatus` summed over all namespaces in memory; `would_serve` is their weighted mean, `max_error` the maximum.

    `unlearnable` is the number of namespaces with a `warning`. `expected_wrong` leaves out the `unestimated` hits, which are
    those of namespaces without an estimate; it is None if it leaves out all. For the other fields, see `LearningStatus`.
    """

    namespaces: int
    serving: int
    observations: int
    served: int
    expected_wrong: float | None
    would_serve: float
    most_wrong: int
    max_error: float
    equal: int = 0
    undecided: int = 0
    unlearnable: int = 0
    unestimated: int = 0
    by_checked: int = 0
    checked_equal: int = 0
    checked_different: int = 0
    checked_undecided: int = 0

    @classmethod
    def from_statuses(cls, statuses: Sequence[LearningStatus]) -> "LearningSummary":
        observations = sum(status.observations for status in statuses)
        served = sum(status.served for status in statuses)
        unestimated = sum(status.served for status in statuses if status.expected_wrong is None)
        would_serve = sum(status.would_serve * status.observations for status in statuses)
        return cls(
            len(statuses),
            sum(status.serves for status in statuses),
            observations,
            served,
            None if unestimated == served > 0 else sum(status.expected_wrong or 0.0 for status in statuses),
            would_serve / observations if observations else 0.0,
            sum(status.most_wrong for status in statuses),
            max((status.max_error for status in statuses), default=0.0),
            sum(status.equal for status in statuses),
            sum(status.undecided for status in statuses),
            sum(status.warning is not None for status in statuses),
            unestimated,
            sum(status.by_checked for status in statuses),
            sum(status.checked_equal for status in statuses),
            sum(status.checked_different for status in statuses),
            sum(status.checked_undecided for status in statuses),
        )


class Policy(Protocol):
    """Decides which neighbour of a question is served, if any. `floor` is the minimum cosine of a served neighbour."""

    name: str
    num_neighbours: int
    floor: float

    def decide(
        self, question: str, neighbours: Sequence[Neighbour], limits: Limits = ..., namespace: str = ...
    ) -> PolicyResult:
        """Decide about all neighbours, which are sorted by similarity, nearest first.

        `namespace` is the name that the program gave it, or for `learned` its digest.
        """


def find_rejection(question: str, neighbour: Neighbour, floor: float, guards: "Sequence[Guard]") -> Decision | None:
    if not neighbour.similarity >= floor:  # A NaN is refused, too.
        return Decision("low similarity")
    for guard in guards:
        if guard.vetoes(question, neighbour.prompt):
            return Decision("vetoed", guard.name)
    return None
