"""The interface of policies, which decide whether to serve a response to a similar question."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kvproxy.index.policies.guards import ADDITIONS, GUARDS, Guard

PolicyName = Literal["learned", "checked", "threshold"]
Verdict = Literal[
    "accepted",
    "low similarity",
    "vetoed",
    "low probability",
    "uncertain",
    "explored",
    "expired",
    "rejected",
    "refusal limit",
    "not compared",
]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A stored question that is similar to the current one.

    Attributes:
        prompt: the stored question, without the earlier turns of its conversation.
        similarity: cosine similarity of the two questions.
        answer: class of its answer (see `answer_classes`); empty if unknown.
    """

    prompt: str
    similarity: float
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request, which can only make the policy stricter; None keeps the policy's own limit."""

    min_similarity: float | None = None
    min_probability: float | None = None
    max_error: float | None = None


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
_DIFFERENCES = {guard.name: guard.difference for guard in (*GUARDS, ADDITIONS)}
_DIFFERENCES["context"] = "an earlier question has another meaning"


def describe_verdict(verdict: Verdict, guard: str | None) -> str:
    return _MEANINGS.get(verdict) or _DIFFERENCES.get(guard or "", "the guards found a difference")


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on one neighbour.

    Attributes:
        guard: name of the guard that vetoed, if any.
        score: the verifier's probability that one answer serves both questions; for the policy `threshold`, the cosine.
            None if it was not computed.
        error: the policy `learned`'s estimated probability that the neighbour's answer is wrong; None for other policies.
    """

    verdict: Verdict
    guard: str | None = None
    score: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class LearningRecord:
    """Inputs of a decision, from which the policy `learned` learns after a comparison with a fresh answer.

    Attributes:
        place: index of the neighbour about which the policy decided.
        features, error, checked: see `Observation`.
        risk: error to add to `ServingLevel.risk` if the neighbour is served: the estimate of the policy that accepted it.
    """

    place: int
    features: tuple[float, ...] | None
    error: float
    risk: float = 0.0
    checked: bool = False


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """The decisions on all neighbours of a question.

    Attributes:
        chosen: index of the accepted neighbour; None if no neighbour is accepted.
        exploration_share: if a neighbour is accepted, the probability with which the caller forwards the request instead.
        record: None if the policy does not learn from the decision.
    """

    decisions: list[Decision]
    chosen: int | None
    exploration_share: float = 0.0
    record: LearningRecord | None = None


@dataclass(frozen=True, slots=True)
class LearningStatus:
    """A report on the learned policy in one namespace.

    Attributes:
        observations: number of comparisons between fresh and stored answers.
        serves: the policy decides without `checked`.
        level: maximum estimated error of a served answer.
        expected_wrong: expected number of wrong answers among the `served` answers.
        most_wrong: upper bound of the number of wrong answers among these, with 90% probability. For
            the answers that `checked` accepted, it counts estimated errors, which are not bounded.
        max_error: maximum share of wrong answers, from the settings.
        would_serve: share of recent requests, served or not, whose estimated error is within `level`.
        doubted: number of answer classes that may have changed.
    """

    observations: int
    serves: bool
    level: float
    served: int
    expected_wrong: float
    most_wrong: int
    max_error: float
    would_serve: float
    doubted: int


@dataclass(frozen=True, slots=True)
class LearningSummary:
    """The sums of `LearningStatus` over all namespaces in memory.

    Attributes:
        serving: number of namespaces in which the policy decides without `checked`.
        would_serve: mean of `LearningStatus.would_serve`, weighted by `observations`.
        max_error: the highest of all namespaces.
    """

    namespaces: int
    serving: int
    observations: int
    served: int
    expected_wrong: float
    would_serve: float
    most_wrong: int
    max_error: float

    @classmethod
    def from_statuses(cls, statuses: Sequence[LearningStatus]) -> "LearningSummary":
        observations = sum(status.observations for status in statuses)
        would_serve = sum(status.would_serve * status.observations for status in statuses)
        return cls(
            len(statuses),
            sum(status.serves for status in statuses),
            observations,
            sum(status.served for status in statuses),
            sum(status.expected_wrong for status in statuses),
            would_serve / observations if observations else 0.0,
            sum(status.most_wrong for status in statuses),
            max((status.max_error for status in statuses), default=0.0),
        )


class Policy(Protocol):
    """Decides which neighbour of a question is served, if any.

    Attributes:
        num_neighbours: number of neighbours to pass to `decide`.
        floor: minimum cosine of a served neighbour.
    """

    name: str
    num_neighbours: int
    floor: float

    def decide(
        self, question: str, neighbours: Sequence[Neighbour], limits: Limits = ..., namespace: str = ...
    ) -> PolicyResult:
        """Decide about all neighbours, which are sorted by similarity, nearest first."""


def find_rejection(question: str, neighbour: Neighbour, floor: float, guards: Sequence[Guard]) -> Decision | None:
    """Return a decision if the minimum cosine or a guard rejects a neighbour; None if the neighbour passes."""
    if not neighbour.similarity >= floor:  # A NaN is refused, too.
        return Decision("low similarity")
    for guard in guards:
        if guard.vetoes(question, neighbour.prompt):
            return Decision("vetoed", guard.name)
    return None
