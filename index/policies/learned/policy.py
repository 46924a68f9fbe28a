"""The policy `learned`: serves what a namespace's own traffic has shown to be right, within a bound on the traffic.

Until a namespace has shown enough, `checked` decides. See docs/semantic-cache.md for the guarantee and its assumptions.
"""

import contextlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.guards import GUARDS, Guard
from kvproxy.index.policies.learned import state
from kvproxy.index.policies.learned.features import REACH
from kvproxy.index.policies.learned.learner import Finding, Learner, Near
from kvproxy.index.policies.learned.prior import Prior
from kvproxy.index.policies.policy import Decision, Limits, Neighbour, Noted, Ruling, Status
from kvproxy.index.store.observations import Observation, Observations

_PART = 1000
_SAVED_EVERY = 200
_MOST = 2000
"""Namespaces that are held in memory; the others come back from their snapshots when they are asked in again."""
_ACROSS = 2.0  # The error of an answer across a guard that its class has lifted, at most, as a multiple of the bound.
_DOUBT = 0.5  # Of the doubt that `checked` allows: what the verifier may leave of an entry that stands alone.


class LearnedPolicy:
    """Accepts the nearest neighbour where the chance that its answer is wrong is within the level.

    Args:
        observations: the log that it learns from.
        checked: decides while too little is known, and over answers that stand alone; None without a verifier.
        max_error: largest share of wrong answers among those served.
        floor: least cosine similarity.
        guards: their vetoes stand until a class has shown that they do not matter to its answer.
    """

    name = "learned"
    reach = REACH

    def __init__(
        self,
        observations: Observations,
        checked: CheckedPolicy | None,
        max_error: float,
        floor: float,
        guards: Sequence[Guard] = GUARDS,
    ) -> None:
        self.max_error = max_error
        self.floor = floor
        self._observations = observations
        self._checked = checked
        self._guards = tuple(guards)
        self._prior = Prior()
        # The one that was asked in last is at the end.
        self._learners: OrderedDict[str, Learner] = OrderedDict()
        self._saved: dict[str, int] = {}
        self._pending: dict[str, tuple[int, float]] = {}
        self._lock = threading.RLock()

    @property
    def learns(self) -> "LearnedPolicy":
        """Itself."""
        return self

    def decide(
        self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits(), namespace: str = ""
    ) -> Ruling:
        learner = self.learner(namespace)
        finding = learner.find([Near(each.similarity, each.answer) for each in neighbours])
        if finding is None:
            return Ruling([Decision("uncertain") for _ in neighbours], None)
        nearest = neighbours[finding.place]
        decision = self._judge(question, nearest, finding, learner, limits)
        decisions = [Decision("passed over") for _ in neighbours]
        decisions[finding.place] = decision
        noted = Noted(finding.place, tuple(finding.features.tolist()), finding.error, finding.error)
        if decision.verdict == "accepted":
            return Ruling(decisions, finding.place, learner.chance(finding.error), noted)
        error = learner.checked_error
        # What is within the level is decided, so that a stricter request never gets what a plain one would not.
        decided = finding.error <= learner.level.level
        if self._checked is None or decided or not learner.checked_allowed or not error <= _most(limits):
            return Ruling(decisions, None, 0.0, noted)
        return self._by_checked(question, neighbours, limits, decisions, noted, error, learner.checked_chance)

    def _judge(
        self,
        question: str,
        nearest: Neighbour,
        finding: Finding,
        learner: Learner,
        limits: Limits,
    ) -> Decision:
        """The decision on the nearest neighbour by what was learned."""
        error = finding.error
        if not nearest.similarity >= max(
            self.floor, limits.similarity or 0.0
        ):  # So that what is no number is refused too.
            return Decision("below threshold", error=error)
        if not (error <= learner.level.level and error * max(learner.level.factor, 1.0) <= _most(limits)):
            return Decision("uncertain", error=error)
        vetoes = self.vetoes(question, nearest.prompt)
        veto = learner.doubts.standing(nearest.answer, vetoes)
        if veto is not None:
            return Decision("vetoed", veto, error=error)
        if vetoes and error > _ACROSS * self.max_error:
            # A class has shown that the difference does not matter to its answer, not that this question is one of it.
            return Decision("vetoed", vetoes[0], error=error)
        if not finding.alone and limits.level is None:
            return Decision("accepted", error=error)
        # One entry alone says nothing about what its answer depends on: the words decide, as in a namespace without a past.
        if self._checked is None:
            return Decision("uncertain", error=error)
        read = replace(self._checked.decide(question, [nearest], limits).decisions[0], error=error)
        if read.verdict == "accepted" and finding.alone and not learner.checked_allowed and not self._sure(read):
            # Only where `checked` has proved right here is its own level enough.
            return replace(read, verdict="below level")
        return read

    def _sure(self, read: Decision) -> bool:
        """Whether the verifier leaves no more than half of the doubt that its level allows."""
        assert self._checked is not None
        return read.score is not None and 1 - read.score <= _DOUBT * (1 - self._checked.level)

    def _by_checked(
        self,
        question: str,
        neighbours: Sequence[Neighbour],
        limits: Limits,
        decisions: list[Decision],
        noted: Noted,
        error: float,
        chance: float,
    ) -> Ruling:
        """What `checked` makes of the nearest few."""
        assert self._checked is not None
        ruling = self._checked.decide(question, neighbours[: self._checked.reach], limits)
        told = [
            decision
            if decision.verdict in ("below threshold", "vetoed", "passed over")
            else replace(decision, error=error)
            for decision in ruling.decisions
        ]
        told += decisions[len(told) :]
        if ruling.chosen is None:
            return Ruling(told, None, 0.0, noted)
        if ruling.chosen == noted.place:
            return Ruling(told, ruling.chosen, chance, replace(noted, risk=error, checked=True))
        return Ruling(told, ruling.chosen, chance, Noted(ruling.chosen, None, error, error, checked=True))

    def vetoes(self, question: str, cached: str) -> tuple[str, ...]:
        """The guards that speak between two questions."""
        return tuple(guard.name for guard in self._guards if guard.vetoes(question, cached))

    def served(self, namespace: str, error: float) -> None:
        """An answer was served whose error was so large; kept with the next observation."""
        with self._lock:
            answers, risk = self._pending.get(namespace, (0, 0.0))
            self._pending[namespace] = answers + 1, risk + error

    def learn(self, observations: Sequence[Observation]) -> None:
        """Keep observations, durable when this returns, and learn from them; never called while a request waits."""
        with self._lock:
            counted = [self._counted(seen) for seen in observations]
            self._observations.add(counted)
            for namespace in dict.fromkeys(seen.namespace for seen in counted):
                self._follow(namespace)

    def _counted(self, seen: Observation) -> Observation:
        answers, risk = self._pending.pop(seen.namespace, (0, 0.0))
        return replace(seen, served=answers, risk=risk)

    def flush(self) -> None:
        """Keep what was served since the last observations, and take in what other proxies have learned."""
        with self._lock:
            waiting = list(self._pending)
            if waiting:
                self.learn([Observation("", True, "served", False, time.time(), namespace) for namespace in waiting])
            for namespace in list(self._learners):
                if namespace not in waiting and namespace in self._learners:
                    self._follow(namespace)

    def learner(self, namespace: str) -> Learner:
        """What a namespace has learned."""
        found = self._learners.get(namespace)
        if found is None:
            with self._lock:
                return self._follow(namespace)
        # Without the lock, which is held while observations are written: it may have gone meanwhile.
        with contextlib.suppress(KeyError):
            self._learners.move_to_end(namespace)
        return found

    def _follow(self, namespace: str) -> Learner:
        """Take in the observations that are new in the log, in its order; what the namespace has learned then."""
        learner = self._learners.get(namespace) or self._restored(namespace)
        saved = self._saved.setdefault(namespace, learner.number)
        while True:
            seen = self._observations.since(namespace, learner.number, _PART)
            if self._observations.pruned(namespace) > learner.number:
                # Another proxy has taken in what comes next, and deleted it. Its snapshot goes on from there.
                learner = self._restored(namespace)
                continue
            if not seen:
                break
            for each in seen:
                learner.take(each)
                if each.features is not None and each.error is not None and not each.vetoes:
                    self._prior.learn(np.array(each.features), each.error, each.right, learner.level.reach)
            learner.level.settle()
        self._learners[namespace] = learner
        if learner.number - saved >= _SAVED_EVERY:
            self._save(namespace, learner)
        while len(self._learners) > _MOST:
            self._leave(*self._learners.popitem(last=False))
        return learner

    def _save(self, namespace: str, learner: Learner) -> None:
        self._observations.save(namespace, learner.number, state.dump(learner))
        self._saved[namespace] = learner.number

    def _leave(self, namespace: str, learner: Learner) -> None:
        """Keep what a namespace that goes from memory has learned, so that the prior learns nothing of it twice."""
        if learner.number > self._saved[namespace]:
            self._save(namespace, learner)
        del self._saved[namespace]

    def _restored(self, namespace: str) -> Learner:
        kept = self._observations.snapshot(namespace)
        found = state.load(kept, self.max_error) if kept is not None else None
        if found is not None:
            return found
        new = Learner.new(self._prior, self.max_error)
        # Where the snapshot is of another version, what it had taken in may be gone.
        new.number = self._observations.pruned(namespace)
        # What it starts from depends on what the others know now, so it is part of what must come back.
        self._observations.save(namespace, new.number, state.dump(new))
        return new

    def status(self, namespace: str) -> Status:
        """What a namespace has learned, to be shown."""
        learner = self.learner(namespace)
        level = learner.level
        return Status(
            learner.observed,
            learner.ready,
            level.level,
            level.served,
            level.risk,
            level.bound,
            self.max_error,
            level.through,
            sum(odds > 0.1 for odds in learner.doubts.odds.values()),
        )

    def statuses(self) -> dict[str, Status]:
        """Those of the namespaces that were asked in last."""
        return {namespace: self.status(namespace) for namespace in list(self._learners)}


def _most(limits: Limits) -> float:
    return math.inf if limits.max_error is None else limits.max_error
