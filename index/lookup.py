"""What is decided of a question's neighbours, and which of them is served."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvproxy.index.entry import Entry
from kvproxy.index.observations import History, Observations
from kvproxy.index.policies.policy import Decision, Limits, Neighbour, Policy, Verdict, best
from kvproxy.index.store import Head, Store


@dataclass(frozen=True, slots=True)
class Candidate:
    """A neighbour and what was decided of it; see `policies.policy.Decision`."""

    id: str
    prompt: str
    similarity: float
    verdict: Verdict
    guard: str | None = None
    score: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """The entry to serve, if any, and every neighbour that was looked at, nearest first.

    Attributes:
        chosen: the neighbour that is served, or would have been but is explored.
    """

    entry: Entry | None
    candidates: tuple[Candidate, ...]
    chosen: Candidate | None = None

    @property
    def similarity(self) -> float | None:
        """Cosine of what is served."""
        return self.chosen.similarity if self.entry is not None and self.chosen is not None else None

    @property
    def comparable(self) -> Candidate | None:
        """The neighbour whose answer tells most when a fresh one is there: the chosen, or the one that came closest to it."""
        scored = [candidate for candidate in self.candidates if candidate.score is not None]
        closest = max(scored, key=lambda candidate: (-(candidate.error or 0.0), candidate.score or 0.0), default=None)
        return self.chosen or closest

    @property
    def outcome(self) -> str:
        """One word for statistics: the verdict that decided, or `no neighbour`."""
        telling = self.comparable or next(iter(self.candidates), None)
        return telling.verdict if telling is not None else "no neighbour"


def judge(
    store: Store,
    observations: Observations | None,
    policy: Policy,
    namespace: str,
    question: str,
    near: Sequence[tuple[str, float]],
    limits: Limits,
    chance: Callable[[], float] | None,
) -> Lookup:
    """Decide over neighbours.

    Args:
        namespace: where the question was asked; what belongs to another is not even looked at.
        near: (id, cosine), nearest first.
        chance: uniform numbers below 1. Where the policy gives a bound on the error, a share of the hits as large as the bound
            is explored: forwarded, so that the bound is tested. None explores nothing.
    """
    heads = store.heads([id for id, _ in near]) if near else {}
    found = [(heads[id], similarity) for id, similarity in near if id in heads and heads[id].namespace == namespace]
    histories = observations.histories([head.id for head, _ in found], policy.scorer) if observations and found else {}
    barred = [_barred(head, histories.get(head.id, History())) for head, _ in found]
    open_ = [place for place, verdict in enumerate(barred) if verdict is None]
    neighbours = [
        Neighbour(found[place][0].prompt, found[place][1], histories.get(found[place][0].id, History()))
        for place in open_
    ]
    decided = dict(zip(open_, policy.decide(question, neighbours, limits), strict=True))
    decisions = [decided.get(place) or Decision(barred[place] or "expired") for place in range(len(found))]
    place = best(decisions)
    if place is not None and chance is not None and chance() < (decisions[place].error or 0.0):
        decisions[place] = replace(decisions[place], verdict="explored")
    candidates = tuple(
        Candidate(head.id, head.prompt, similarity, decision.verdict, decision.guard, decision.score, decision.error)
        for (head, similarity), decision in zip(found, decisions, strict=True)
    )
    if place is None:
        return Lookup(None, candidates)
    # It may have gone since.
    served = store.get(found[place][0].id) if decisions[place].verdict == "accepted" else None
    return Lookup(served, candidates, candidates[place])


def _barred(head: Head, history: History) -> Verdict | None:
    """Why an entry is out of the question, whatever is asked."""
    if history.rejected:
        return "rejected"
    return None if head.live else "expired"
