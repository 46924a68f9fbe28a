"""The interface of policies: which neighbours of a question have an answer that serves it too."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from kvproxy.index.observations import History, Observations

Verdict = Literal[
    "accepted", "below threshold", "vetoed", "below level", "uncertain", "explored", "expired", "rejected"
]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A stored question close to the one that is asked.

    Attributes:
        prompt: the stored question.
        similarity: cosine.
        history: what was learned of the entry's answers.
    """

    prompt: str
    similarity: float
    history: History = field(default_factory=History)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request asks of the policy. Each can only make it stricter.

    Attributes:
        similarity: least cosine.
        level: least probability of the verifier.
        max_error: largest expected error.
    """

    similarity: float | None = None
    level: float | None = None
    max_error: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict on one neighbour, and what led to it.

    Attributes:
        guard: the name of the guard that vetoed.
        score: what the policy compares: the verifier's probability, or the cosine without one; None where none was needed.
        error: upper bound on the probability that serving is wrong, from a policy that learns.
    """

    verdict: Verdict
    guard: str | None = None
    score: float | None = None
    error: float | None = None


class Policy(Protocol):
    """Decides over all neighbours of a request at once."""

    name: str
    scorer: str
    """What makes the scores; observations of one scorer say nothing about another's."""
    learns: bool
    """Whether observations change its decisions."""

    def decide(self, question: str, neighbours: Sequence[Neighbour], limits: Limits = ...) -> list[Decision]:
        """A decision for each neighbour; of several accepted ones the `best` is served."""

    def learn(self, observations: Observations, added: int) -> None:
        """Take in that so many observations were added; slow at times, so never called while a request waits."""


def best(decisions: Sequence[Decision]) -> int | None:
    """Which accepted neighbour to serve: the least error, then the highest score, then the nearest."""
    accepted = [place for place, decision in enumerate(decisions) if decision.verdict == "accepted"]
    return min(accepted, key=lambda place: _rank(decisions[place]), default=None)


def _rank(decision: Decision) -> tuple[float, float]:
    return decision.error or 0.0, -(decision.score or 0.0)
