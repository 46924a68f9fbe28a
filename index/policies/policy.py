"""The interface of policies: which neighbours of a question have an answer that serves it too."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kvproxy.index.store.observations import Observation

PolicyName = Literal["learned", "checked", "threshold"]
Verdict = Literal[
    "accepted",
    "below threshold",
    "vetoed",
    "below level",
    "uncertain",
    "explored",
    "expired",
    "rejected",
    "passed over",
]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A stored question close to the one that is asked.

    Attributes:
        prompt: the stored question.
        similarity: cosine.
        answer: the class of its answer.
    """

    prompt: str
    similarity: float
    answer: str = ""


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
        error: the probability that serving is wrong, from a policy that learns.
    """

    verdict: Verdict
    guard: str | None = None
    score: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Noted:
    """What a policy has to remember of a decision until a fresh answer shows whether it was right.

    Attributes:
        place: of the neighbour that was judged.
        features, error, checked: see `observations.Observation`.
        risk: the probability of being wrong that is charged if it is served.
    """

    place: int
    features: tuple[float, ...] | None
    error: float
    risk: float = 0.0
    checked: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """The decisions on all neighbours of a request.

    Attributes:
        decisions: one for each.
        chosen: place of the one to serve; None for none.
        chance: the share of such requests that is forwarded all the same, so that the policy goes on learning.
        noted: what to remember, from a policy that learns.
    """

    decisions: list[Decision]
    chosen: int | None
    chance: float = 0.0
    noted: Noted | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """What a namespace has learned, to be shown.

    Attributes:
        observations: comparisons taken in.
        serves: whether it decides by itself; otherwise `checked` does.
        level: the largest error of an answer that is served.
        served: similar questions answered.
        expected_wrong: how many of these are expected to be wrong.
        bound: the share of wrong answers among them that is not exceeded, with the stated probability.
        max_error: the bound that was asked for.
        would_serve: the share of recent requests with a neighbour that the level lets through.
        doubted: classes of answers that may have changed.
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
class Overall:
    """What several namespaces have learned, together.

    Attributes:
        namespaces: that were asked in.
        serving: of them, those that decide by themselves.
        observations, served, expected_wrong: sums; see `Status`.
        would_serve: the mean share of requests that is let through, each namespace counting as much as was observed of it.
        bound: the largest of all.
        max_error: the bound that was asked for; 0 before anything was asked.
    """

    namespaces: int
    serving: int
    observations: int
    served: int
    expected_wrong: float
    would_serve: float
    bound: float
    max_error: float

    @classmethod
    def of(cls, statuses: Sequence[Status]) -> "Overall":
        """The sum of some."""
        observed = sum(status.observations for status in statuses)
        through = sum(status.would_serve * status.observations for status in statuses)
        return cls(
            len(statuses),
            sum(status.serves for status in statuses),
            observed,
            sum(status.served for status in statuses),
            sum(status.expected_wrong for status in statuses),
            through / observed if observed else 0.0,
            max((status.bound for status in statuses), default=0.0),
            max((status.max_error for status in statuses), default=0.0),
        )


class Learns(Protocol):
    """What learns from observations. Safe to use from several threads; all but `served` may raise a CacheStoreError."""

    def served(self, namespace: str, error: float) -> None:
        """An answer was served whose error was so large; kept with the next observation."""

    def learn(self, observations: Sequence[Observation]) -> None:
        """Keep observations, durable when this returns, and learn from them; never called while a request waits."""

    def vetoes(self, question: str, cached: str) -> tuple[str, ...]:
        """The guards that speak between two questions."""

    def status(self, namespace: str) -> Status:
        """What a namespace has learned, to be shown."""

    def statuses(self) -> dict[str, Status]:
        """Those of the namespaces that were asked in last."""

    def flush(self) -> None:
        """Keep what was served since the last observations, and take in what other proxies have learned."""


class Policy(Protocol):
    """Decides over all neighbours of a request at once."""

    name: str
    reach: int
    """How many neighbours it looks at."""
    floor: float
    """Least cosine of what it serves."""

    @property
    def learns(self) -> Learns | None:
        """What of it learns; None where nothing does."""

    def decide(
        self, question: str, neighbours: Sequence[Neighbour], limits: Limits = ..., namespace: str = ...
    ) -> Ruling:
        """A decision for each neighbour, nearest first."""
