"""The interface of policies, which decide whether a response to a similar question may be served."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kvproxy.index.policies.guards import Guard

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
    "not compared",
]


@dataclass(frozen=True, slots=True)
class Neighbour:
    prompt: str
    similarity: float
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request. Each can only make the policy stricter."""

    min_similarity: float | None = None
    min_probability: float | None = None
    max_error: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict on one neighbour.

    Attributes:
        score: probability of the verifier, or cosine similarity without a verifier.
        error: estimated probability that its response is wrong.
    """

    verdict: Verdict
    guard: str | None = None
    score: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class LearningRecord:
    """Inputs of a decision, kept until a fresh response shows whether it was right.

    Attributes:
        features, error, checked: see `Observation`.
        risk: probability of being wrong that a hit charges to the bound.
    """

    place: int
    features: tuple[float, ...] | None
    error: float
    risk: float = 0.0
    checked: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """The decisions on all neighbours of a question.

    Attributes:
        chosen: index of the accepted neighbour.
        chance: share of such requests to forward for learning.
    """

    decisions: list[Decision]
    chosen: int | None
    chance: float = 0.0
    record: LearningRecord | None = None


@dataclass(frozen=True, slots=True)
class LearningStatus:
    """State of the learning policy in one namespace.

    Attributes:
        serves: the policy decides without `checked`.
        level: largest estimated error of a served response.
        bound: upper bound of the share of wrong hits.
        would_serve: share of recent requests with an acceptable neighbour.
        doubted: answer classes that may have changed.
    """

    observations: int
    serves: bool
    level: float
    served: int
    expected_wrong: float
    bound: float
    max_error: float
    would_serve: float
    doubted: int


@dataclass(frozen=True, slots=True)
class LearningSummary:
    """State of the learning policy in all namespaces in memory: sums, the mean `would_serve`, and the largest `bound`."""

    namespaces: int
    serving: int
    observations: int
    served: int
    expected_wrong: float
    would_serve: float
    bound: float
    max_error: float

    @classmethod
    def of(cls, statuses: Sequence[LearningStatus]) -> "LearningSummary":
        observations = sum(status.observations for status in statuses)
        would_serve = sum(status.would_serve * status.observations for status in statuses)
        return cls(
            len(statuses),
            sum(status.serves for status in statuses),
            observations,
            sum(status.served for status in statuses),
            sum(status.expected_wrong for status in statuses),
            would_serve / observations if observations else 0.0,
            max((status.bound for status in statuses), default=0.0),
            max((status.max_error for status in statuses), default=0.0),
        )


class Policy(Protocol):
    """Decides about all neighbours of a question.

    Attributes:
        floor: least cosine similarity of a neighbour that may be served.
    """

    name: str
    reach: int
    floor: float

    def decide(
        self, question: str, neighbours: Sequence[Neighbour], limits: Limits = ..., namespace: str = ...
    ) -> Ruling:
        """Decide about neighbours, nearest first."""


def screen(question: str, neighbour: Neighbour, floor: float, guards: Sequence[Guard]) -> Decision | None:
    """Return the refusal of a neighbour, or None if it passes."""
    if not neighbour.similarity >= floor:  # A NaN is refused, too.
        return Decision("low similarity")
    for guard in guards:
        if guard.vetoes(question, neighbour.prompt):
            return Decision("vetoed", guard.name)
    return None
