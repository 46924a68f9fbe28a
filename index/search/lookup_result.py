from dataclasses import dataclass, field
from typing import Literal

from kvproxy.index.entry import Entry, Freshness
from kvproxy.index.pending_writes import PendingWrite
from kvproxy.index.policies.policy import LearningRecord, Limits, PolicyName, Verdict

FRESH: tuple[Freshness, ...] = ("fresh", "stale-while-revalidate")
"""States in which an entry may be served while the backend is available."""
SERVABLE_AFTER_ERROR: tuple[Freshness, ...] = (*FRESH, "stale-if-error")
"""States in which an entry may be served after the backend failed."""
SkipReason = Literal["queue-full", "timeout"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored question with its answer class (empty if unknown), and with the policy's decision on it; see `Decision`."""

    id: str
    prompt: str
    similarity: float
    answer: str
    verdict: Verdict
    guard: str | None = None
    score: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class PendingObservation:
    """A decision of the policy. If the request is forwarded, the backend's response shows whether the decision was right.

    Attributes:
        candidate: the accepted candidate, or else the one with the highest score.
        candidates: all candidates of the policy, nearest first; `record.place` is an index into them.
        accepted: the policy accepted the candidate.
        comparison_probability: probability with which the request is forwarded: the exploration share if accepted, or else 1.
    """

    candidate: Candidate
    record: LearningRecord
    candidates: tuple[Candidate, ...]
    accepted: bool
    comparison_probability: float


@dataclass(frozen=True, slots=True)
class Lookup:
    """The result of a semantic lookup.

    Attributes:
        entry: the entry to serve, if any.
        candidates: similar stored questions, nearest first.
        chosen: the accepted candidate. It is not served if the request is forwarded for exploration.
        observation: None if the policy estimated no score and no error of a candidate.
        skip_reason: None if the lookup ran.
    """

    entry: Entry | None
    candidates: tuple[Candidate, ...]
    chosen: Candidate | None = None
    namespace: str = ""
    question: str = ""
    observation: PendingObservation | None = None
    skip_reason: SkipReason | None = None

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
        """Return the chosen candidate, else the one with the highest score, else the nearest.

        Candidates whose verdict is in `ignored` are skipped. None if no candidate remains.
        """
        left = [each for each in self.candidates if each.verdict not in ignored]
        best = max(left, key=lambda each: -1.0 if each.score is None else each.score, default=None)
        return self.chosen or best


@dataclass(frozen=True, slots=True)
class LookupRequest:
    namespace: str
    question: str
    limits: Limits = field(default_factory=Limits)
    explore: bool = True
    allowed_freshness: tuple[Freshness, ...] = FRESH
    policy: PolicyName | None = None
    pending: tuple[PendingWrite, ...] = ()

    def empty_result(self, skip_reason: SkipReason | None = None) -> Lookup:
        return Lookup(None, (), namespace=self.namespace, question=self.question, skip_reason=skip_reason)
