"""The result of a semantic lookup."""

from dataclasses import dataclass, field
from typing import Literal

from kvproxy.index.entry import Entry, Freshness
from kvproxy.index.pending_writes import PendingWrite
from kvproxy.index.policies.policy import LearningRecord, Limits, PolicyName, Verdict

# States in which an entry may be served while the backend works, and after it failed.
FRESH: tuple[Freshness, ...] = ("fresh", "stale-while-revalidate")
SERVABLE_AFTER_ERROR: tuple[Freshness, ...] = (*FRESH, "stale-if-error")
SkipReason = Literal["queue-full", "timeout", "overload"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored question, and the policy's decision on it; see `Decision`."""

    id: str
    prompt: str
    similarity: float
    answer: str  # Class of its answer, see `answer_classes`.
    verdict: Verdict
    guard: str | None = None
    score: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class PendingObservation:
    """A decision that becomes an `Observation` if the request is forwarded, because the fresh answer shows whether it was right.

    Attributes:
        candidate: the accepted candidate, or else the one with the highest score.
        record: facts about the candidate that the policy `learned` judged; `record.index` is its index in `candidates`.
        candidates: all candidates of the policy, nearest first.
        comparison_probability: probability with which the request is forwarded: the exploration share if accepted, or else 1.
    """

    candidate: Candidate
    record: LearningRecord
    candidates: tuple[Candidate, ...]
    accepted: bool
    comparison_probability: float


@dataclass(frozen=True, slots=True)
class Lookup:
    """The result of a semantic lookup."""

    entry: Entry | None  # The entry to serve.
    candidates: tuple[Candidate, ...]  # Nearest first.
    chosen: Candidate | None = None  # Accepted, but not served if the request is forwarded for exploration.
    namespace: str = ""
    question: str = ""
    observation: PendingObservation | None = None  # None if the policy estimated neither scores nor errors.
    skip_reason: SkipReason | None = None  # None if the lookup ran.

    @property
    def similarity(self) -> float | None:
        return self.chosen.similarity if self.entry is not None and self.chosen is not None else None

    @property
    def outcome(self) -> str:
        if self.skip_reason is not None:
            return "skipped"
        decisive = self.decisive_candidate("not compared")
        return decisive.verdict if decisive is not None else "no neighbour"

    def decisive_candidate(self, *ignored: Verdict) -> Candidate | None:
        """Return `chosen`, if any, or else the best candidate whose verdict is not `ignored`: by score, then by nearness."""
        remaining = [candidate for candidate in self.candidates if candidate.verdict not in ignored]
        best = max(remaining, key=lambda candidate: -1.0 if candidate.score is None else candidate.score, default=None)
        return self.chosen or best


@dataclass(frozen=True, slots=True)
class LookupRequest:
    """A semantic lookup. `namespace_name` is the name that a program gave the namespace; None for a proxy's namespace."""

    namespace: str
    question: str
    limits: Limits = field(default_factory=Limits)
    explore: bool = True
    compare: bool = True
    allowed_freshness: tuple[Freshness, ...] = FRESH
    policy: PolicyName | None = None
    pending: tuple[PendingWrite, ...] = ()
    namespace_name: str | None = None

    def empty_result(self, skip_reason: SkipReason | None = None) -> Lookup:
        return Lookup(None, (), namespace=self.namespace, question=self.question, skip_reason=skip_reason)
