"""What is decided of a question's neighbours, and which of them is served."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kvproxy.index.entry import Entry, Freshness
from kvproxy.index.pending_writes import PendingWrite
from kvproxy.index.policies.policy import Decision, Limits, Neighbour, Noted, Policy, PolicyName, Ruling, Verdict
from kvproxy.index.store import Store, StoredQuestion
from kvproxy.index.store.observations import Observations

FRESH: tuple[Freshness, ...] = ("fresh", "stale-while-revalidate")
"""What is served of itself: what is past its time is computed anew meanwhile."""
KEPT: tuple[Freshness, ...] = (*FRESH, "stale-if-error")
"""What is served where nothing can be computed."""


SkipReason = Literal["queue-full", "timeout"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A neighbour and what was decided of it; see `policies.policy.Decision`. `answer`: the class of its answer."""

    id: str
    prompt: str
    similarity: float
    verdict: Verdict
    guard: str | None = None
    score: float | None = None
    error: float | None = None
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Judged:
    """What was decided by, kept until a fresh answer shows whether it was right.

    Attributes:
        candidate: whose answer would serve.
        noted: by what; its place is among `near`.
        near: the neighbours that were in question, nearest first.
        accepted: it was found right.
        chance: the probability with which it is forwarded all the same.
    """

    candidate: Candidate
    noted: Noted
    near: tuple[Candidate, ...]
    accepted: bool
    chance: float


@dataclass(frozen=True, slots=True)
class Lookup:
    """The entry to serve, if any, and every neighbour that was looked at, nearest first.

    Attributes:
        namespace, question: what was asked, and where.
        chosen: the neighbour that is served, or would have been but is explored.
        judged: what a fresh answer can teach, where the policy learns.
        skipped: reason to skip the lookup; None if it was decided.
    """

    entry: Entry | None
    candidates: tuple[Candidate, ...]
    chosen: Candidate | None = None
    namespace: str = ""
    question: str = ""
    judged: Judged | None = None
    skipped: SkipReason | None = None

    @property
    def similarity(self) -> float | None:
        """Cosine of what is served."""
        return self.chosen.similarity if self.entry is not None and self.chosen is not None else None

    @property
    def outcome(self) -> str:
        """A word for statistics: the verdict that decided, `no neighbour`, or `skipped`."""
        if self.skipped is not None:
            return "skipped"
        told = [candidate for candidate in self.candidates if candidate.verdict != "passed over"]
        scored = max(
            (candidate for candidate in told if candidate.score is not None),
            key=lambda candidate: candidate.score or 0.0,
            default=None,
        )
        telling = self.chosen or scored or next(iter(told), None)
        return telling.verdict if telling is not None else "no neighbour"


@dataclass(frozen=True, slots=True)
class LookupRequest:
    """Arguments of a lookup; see `SemanticCache.lookup`.

    Attributes:
        pending: pending writes in the namespace.
    """

    namespace: str
    question: str
    limits: Limits = field(default_factory=Limits)
    explore: bool = True
    served: tuple[Freshness, ...] = FRESH
    policy: PolicyName | None = None
    pending: tuple[PendingWrite, ...] = ()

    def without_result(self, skipped: SkipReason | None = None) -> Lookup:
        return Lookup(None, (), namespace=self.namespace, question=self.question, skipped=skipped)


def judge(
    store: Store,
    observations: Observations | None,
    policy: Policy,
    namespace: str,
    question: str,
    near: Sequence[tuple[StoredQuestion, float]],
    limits: Limits,
    chance: Callable[[], float] | None,
    *,
    served: Sequence[Freshness] = FRESH,
) -> Lookup:
    """Decide over neighbours.

    Args:
        namespace: where the question was asked; what belongs to another is not even looked at.
        near: entries and their cosines, nearest first.
        chance: uniform numbers below 1: a share of what is accepted, chosen by the policy, is explored: forwarded, so that the
            policy learns. None explores nothing.
        served: how fresh an entry must be.
    """
    found = [(head, similarity) for head, similarity in near if head.namespace == namespace]
    rejected = observations.rejected([head.id for head, _ in found]) if observations and found else set()
    barred = [_barred(head, rejected, served) for head, _ in found]
    open_ = [place for place, verdict in enumerate(barred) if verdict is None]
    neighbours = [Neighbour(found[place][0].prompt, found[place][1], found[place][0].answer) for place in open_]
    ruling = policy.decide(question, neighbours, limits, namespace) if neighbours else Ruling([], None)
    decided = dict(zip(open_, ruling.decisions, strict=True))
    explored = ruling.chosen is not None and chance is not None and chance() < ruling.chance
    if explored and ruling.chosen is not None:
        decided[open_[ruling.chosen]] = replace(decided[open_[ruling.chosen]], verdict="explored")
    candidates = [_candidate(*found[place], decided.get(place), barred[place]) for place in range(len(found))]
    judged = _judged(ruling, [candidates[place] for place in open_])
    chosen = candidates[open_[ruling.chosen]] if ruling.chosen is not None else None
    # It may have gone since.
    entry = store.get(chosen.id) if chosen is not None and not explored else None
    return Lookup(entry, tuple(candidates), chosen, namespace, question, judged)


def _candidate(head: StoredQuestion, similarity: float, decision: Decision | None, barred: Verdict | None) -> Candidate:
    if decision is None:
        return Candidate(head.id, head.prompt, similarity, barred or "expired", answer=head.answer)
    return Candidate(
        head.id,
        head.prompt,
        similarity,
        decision.verdict,
        decision.guard,
        decision.score,
        decision.error,
        head.answer,
    )


def _judged(ruling: Ruling, near: Sequence[Candidate]) -> Judged | None:
    noted = ruling.noted
    if noted is None:
        place = _telling(ruling)
        if place is None:
            return None
        noted = Noted(place, None, 0.0)
    accepted = ruling.chosen is not None
    return Judged(near[noted.place], noted, tuple(near), accepted, ruling.chance if accepted else 1.0)


def _telling(ruling: Ruling) -> int | None:
    """The neighbour whose answer tells most, where a policy notes none: the chosen, or the one that came closest to it."""
    scored = [place for place, decision in enumerate(ruling.decisions) if decision.score is not None]
    closest = max(scored, key=lambda place: ruling.decisions[place].score or 0.0, default=None)
    return closest if ruling.chosen is None else ruling.chosen


def _barred(head: StoredQuestion, rejected: set[str], served: Sequence[Freshness]) -> Verdict | None:
    """Why an entry is out of the question, whatever is asked."""
    if head.id in rejected:
        return "rejected"
    return None if head.freshness in served else "expired"
