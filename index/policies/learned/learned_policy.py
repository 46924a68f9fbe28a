"""The policy `learned`: estimates from past comparisons whether an answer is wrong, and bounds the share of wrong answers.

In a namespace without enough comparisons, the policy `checked` decides. docs/semantic-cache.md states the guarantee.
"""

import contextlib
import logging
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvproxy.index.policies.checked import CheckedPolicy
from kvproxy.index.policies.guards import GUARDS, WORDS, Guard
from kvproxy.index.policies.learned.error_model import FEATURES, NUM_NEIGHBOURS, ErrorModelPrior
from kvproxy.index.policies.learned.learner import ErrorEstimate, Learner
from kvproxy.index.policies.policy import (
    Decision,
    LearningRecord,
    LearningStatus,
    Limits,
    Neighbour,
    PolicyResult,
    checked_interval,
    learning_warning,
)
from kvproxy.index.store.observations import Observation, Observations

_log = logging.getLogger("kvproxy")
_READ_BATCH = 1000
_SNAPSHOT_INTERVAL = 200  # Observations.
_MAX_LEARNERS = 2000
_LIFTED_ERROR = 2.0
# In replays, 2% of the answers that `checked` accepts are wrong if their error is below 0.08, and 40% if it is above 0.2.
_DOUBTED_ERROR = 5.0
_SURE_SHARE = 0.5
_SURE_PROBABILITY = 0.95


@dataclass(frozen=True, slots=True)
class ServedHits:
    """Hits of a namespace that no observation counts yet. `risk` sums the estimated errors of those not `by_checked`."""

    count: int = 0
    risk: float = 0.0
    by_checked: int = 0
    classes: Counter[str] = field(default_factory=Counter)

    def add(self, error: float, by_checked: bool, answer_class: str) -> "ServedHits":
        risk = self.risk + (0.0 if by_checked else error)
        classes = self.classes + Counter([answer_class] if answer_class else [])
        return ServedHits(self.count + 1, risk, self.by_checked + by_checked, classes)


class LearnedPolicy:
    """Serves the nearest neighbour if its answer is unlikely to be wrong: see `ServingLevel.error_limit`.

    Args:
        checked: decides in new namespaces, and if no other neighbour has the same answer. Without it, no neighbour is served
            in these cases.
        max_error: maximum share of wrong answers among the served answers.
        guards: veto hits, until comparisons show that the difference does not matter for the answer's class.
        has_new_words: returns whether a question has words that no stored question with the answer has, or None if the
            guards compare the words. A question with new words is neither served nor counted as a comparison.
    """

    name = "learned"
    num_neighbours = NUM_NEIGHBOURS

    def __init__(
        self,
        observations: Observations,
        checked: CheckedPolicy | None,
        max_error: float,
        floor: float,
        guards: Sequence[Guard] = GUARDS,
        has_new_words: Callable[[str, Sequence[str]], bool | None] = lambda question, stored: None,
    ) -> None:
        self.max_error = max_error
        self.floor = floor
        self._observations = observations
        self.checked = checked
        self._guards = tuple(guards)
        self._has_new_words = has_new_words
        self._prior = ErrorModelPrior()
        self._learners: OrderedDict[str, Learner] = OrderedDict()
        self._saved: dict[str, int] = {}
        self._pending: dict[str, ServedHits] = {}
        self._unwatched: dict[str, int] = {}  # Hits since a request was forwarded whose comparison can show a change.
        self._lock = threading.RLock()

    def decide(
        self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits(), namespace: str = ""
    ) -> PolicyResult:
        learner = self.learner(namespace)
        estimate = learner.estimate(question, neighbours)
        if estimate is None:
            return PolicyResult([Decision("uncertain")] * len(neighbours), None)
        nearest = neighbours[estimate.index]
        if not estimate.similarity >= self.floor:  # A NaN is refused, too.
            return PolicyResult([Decision("low similarity")] * len(neighbours), None)
        own = [neighbour.prompt for neighbour in neighbours[estimate.index :] if neighbour.answer == nearest.answer]
        decisions = [Decision("not compared")] * len(neighbours)
        has_new_words = self._has_new_words(question, own)
        if has_new_words:
            decisions[estimate.index] = Decision("vetoed", WORDS, error=estimate.error)
            return PolicyResult(decisions, None, 0.0, LearningRecord(estimate.index, None, estimate.error))
        decisions[estimate.index] = decision = self._decide_nearest(
            question, nearest, estimate, learner, limits, words_are_known=has_new_words is False
        )
        record = LearningRecord(
            estimate.index,
            tuple(estimate.features.tolist()),
            estimate.error,
            estimate.score_error,
            checked=False if self._is_doubted(estimate, learner) else None,
        )
        if decision.verdict == "accepted":
            share = learner.exploration_share(estimate.error)
            if learner.decides and self._is_unwatched(namespace, learner):
                share = 1.0
            if self.checked is not None and not learner.decides:
                share = max(share, self._early_share(namespace, learner))
            return PolicyResult(decisions, estimate.index, share, record)
        error = learner.checked_error
        # If the error is within the limit, `checked` must not overrule. Otherwise, stricter limits could allow more hits.
        decided = learner.decides and learner.is_within_limits(estimate)
        if self.checked is None or decided or not learner.may_serve_checked or not error <= _max_error(limits):
            return PolicyResult(decisions, None, 0.0, record)
        return self._decide_by_checked(
            question,
            neighbours,
            limits,
            record,
            error,
            self._early_share(namespace, learner),
            learner,
        )

    def _is_unwatched(self, namespace: str, learner: Learner) -> bool:
        return self._unwatched.get(namespace, 0) >= learner.class_evidence.changes.common.max_unwatched

    def note_decision(self, namespace: str, result: PolicyResult, *, is_hit: bool) -> None:
        """Count hits in a row, so that every few hits a comparison can show a change of all answers.

        Independent random decisions about exploration would sometimes leave long gaps.
        """
        if is_hit:
            self._unwatched[namespace] = self._unwatched.get(namespace, 0) + 1
        elif result.record is not None and result.record.error <= self.learner(namespace).level.max_counted_error:
            self._unwatched.pop(namespace, None)

    def _early_share(self, namespace: str, learner: Learner) -> float:
        return learner.early_exploration_share(self._pending.get(namespace, ServedHits()).count)

    def _decide_nearest(
        self,
        question: str,
        nearest: Neighbour,
        estimate: ErrorEstimate,
        learner: Learner,
        limits: Limits,
        *,
        words_are_known: bool,
    ) -> Decision:
        error = estimate.error
        if not nearest.similarity >= limits.least_cosine:  # A NaN is refused, too.
            return Decision("low similarity", error=error)
        if not (
            learner.is_within_limits(estimate) and error * max(learner.level.error_factor, 1.0) <= _max_error(limits)
        ):
            return Decision("uncertain", error=error)
        vetoes = self.vetoes(question, nearest.prompt)
        veto = learner.class_evidence.first_unlifted_guard(nearest.answer, vetoes)
        if veto is not None:
            return Decision("vetoed", veto, error=error)
        if vetoes and error > _LIFTED_ERROR * self.max_error:
            # The guard is irrelevant to this class, but the question may need another class.
            return Decision("vetoed", vetoes[0], error=error)
        # In a new namespace, estimated errors are unproven: `checked` decides, or the words must be known.
        has_known_words = words_are_known and error <= self.max_error
        if not (learner.decides or self.checked is None or has_known_words):
            return Decision("uncertain", error=error)
        if not estimate.is_only_member and limits.min_probability is None:
            return Decision("accepted", error=error)
        if self.checked is None:
            return Decision("uncertain", error=error)
        decision = replace(self.checked.decide(question, [nearest], limits).decisions[0], error=error)
        if decision.verdict == "accepted" and estimate.is_only_member and not learner.may_serve_checked:
            # Until `checked` has proved itself in this namespace, its usual level is not enough.
            is_sure = decision.score is not None and 1 - decision.score <= _SURE_SHARE * (1 - self.checked.level)
            return decision if is_sure else replace(decision, verdict="low probability")
        return decision

    def _decide_by_checked(
        self,
        question: str,
        neighbours: Sequence[Neighbour],
        limits: Limits,
        record: LearningRecord,
        error: float,
        chance: float,
        learner: Learner,
    ) -> PolicyResult:
        assert self.checked is not None
        # A changed answer is wrong also for an equal question.
        is_allowed = [learner.is_current(neighbour.answer) for neighbour in neighbours]
        if learner.knows_classes:
            # The probability of all other classes together is the error of the nearest one.
            nearest = neighbours[record.index].answer
            is_allowed = [
                allowed and near.answer == nearest for allowed, near in zip(is_allowed, neighbours, strict=True)
            ]
        places = [place for place, allowed in enumerate(is_allowed) if allowed][: self.checked.num_neighbours]
        result = self.checked.decide(question, [neighbours[place] for place in places], limits)
        estimate = error if learner.num_checked >= 1 and not learner.answers_vary else None
        decisions = [Decision("not compared" if allowed else "uncertain") for allowed in is_allowed]
        for place, decision in zip(places, result.decisions, strict=True):
            decisions[place] = decision if decision.score is None else replace(decision, error=estimate)
        if result.chosen is None:
            was_compared = record.index in places and decisions[record.index].verdict != "not compared"
            return PolicyResult(decisions, None, 0.0, replace(record, checked=False) if was_compared else record)
        chosen = places[result.chosen]
        if chosen != record.index:
            return PolicyResult(decisions, chosen, chance, LearningRecord(chosen, None, error, error, checked=True))
        if record.checked is False:  # The score doubts it.
            decisions[chosen] = replace(decisions[chosen], verdict="uncertain", error=record.risk)
            return PolicyResult(decisions, None, 0.0, record)
        return PolicyResult(decisions, chosen, chance, replace(record, risk=error, checked=True))

    def _is_doubted(self, estimate: ErrorEstimate, learner: Learner) -> bool:
        """Whether the score is too sure that the question needs another answer, so that `checked` must not serve this one."""
        return learner.knows_classes and estimate.score_error > _DOUBTED_ERROR * self.max_error

    def vetoes(self, question: str, cached_question: str) -> tuple[str, ...]:
        return tuple(guard.name for guard in self._guards if guard.vetoes(question, cached_question))

    def is_accepted_by_checked(self, question: str, neighbour: Neighbour, record: LearningRecord) -> bool:
        """Return whether `checked` accepts a compared neighbour, so that it proves itself also while it does not decide."""
        if record.checked is not None or self.checked is None:
            return bool(record.checked)
        return self.checked.decide(question, [neighbour]).chosen is not None

    def suspected_successors(self, namespace: str, answer_class: str) -> Sequence[str]:
        """Return classes that may have the new answer to the questions of a class, each named by the id of an entry."""
        return self.learner(namespace).class_evidence.suspected_successors(answer_class)

    def are_surely_equal(self, question: str, neighbour: Neighbour) -> bool:
        """Whether `checked` accepts the neighbour at a level that no near-miss of the tests reaches."""
        if self.checked is None:
            return False
        limits = Limits(min_probability=max(_SURE_PROBABILITY, self.checked.level))
        return self.checked.decide(question, [neighbour], limits).chosen is not None

    def record_served(self, namespace: str, error: float, *, by_checked: bool = False, answer_class: str = "") -> None:
        """Count a semantic hit in memory; the namespace's next observation stores the counts (`ServedHits`)."""
        with self._lock:
            self._pending[namespace] = self._pending.get(namespace, ServedHits()).add(error, by_checked, answer_class)

    def learn(self, observations: Sequence[Observation]) -> None:
        with self._lock:
            counted = []
            for observation in observations:
                hits = self._pending.pop(observation.namespace, ServedHits())
                counted.append(
                    replace(
                        observation,
                        served=hits.count,
                        risk=hits.risk,
                        served_by_checked=hits.by_checked,
                        hits=tuple(hits.classes.items()),
                    )
                )
            self._observations.add(counted)
            for namespace in dict.fromkeys(observation.namespace for observation in counted):
                self._catch_up(namespace)

    def flush(self) -> None:
        with self._lock:
            pending = list(self._pending)
            if pending:
                self.learn([Observation("", True, "served", False, time.time(), namespace) for namespace in pending])
            for namespace in list(self._learners):
                if namespace not in pending and namespace in self._learners:
                    self._catch_up(namespace)

    def learner(self, namespace: str) -> Learner:
        learner = self._learners.get(namespace)
        if learner is None:
            with self._lock:
                return self._catch_up(namespace)
        # Without the lock, because a write may hold it. Another thread may evict the learner meanwhile.
        with contextlib.suppress(KeyError):
            self._learners.move_to_end(namespace)
        return learner

    def _catch_up(self, namespace: str) -> Learner:
        learner = self._learners.get(namespace) or self._load(namespace)
        saved = self._saved.setdefault(namespace, learner.last_number)
        while True:
            batch = self._observations.list_since(namespace, learner.last_number, _READ_BATCH)
            if self._observations.last_pruned_number(namespace) > learner.last_number:
                # Another proxy has deleted the next observations, after it saved a snapshot.
                learner = self._load(namespace)
                continue
            for observation in map(_without_other_features, batch):
                learner.add(observation)
                is_decided = observation.source != "undecided" and not observation.vetoes
                if is_decided and observation.features is not None and observation.error is not None:
                    self._prior.learn(
                        np.array(observation.features),
                        observation.error,
                        observation.right,
                        learner.level.max_counted_error,
                    )
            if batch:
                learner.level.update()
            if len(batch) < _READ_BATCH:
                break
        self._learners[namespace] = learner
        if learner.last_number - saved >= _SNAPSHOT_INTERVAL:
            self._save(namespace, learner)
        while len(self._learners) > _MAX_LEARNERS:
            self._evict(*self._learners.popitem(last=False))
        return learner

    def _save(self, namespace: str, learner: Learner) -> None:
        self._observations.save_snapshot(namespace, learner.last_number, learner.to_json())
        self._saved[namespace] = learner.last_number

    def _evict(self, namespace: str, learner: Learner) -> None:
        # The prior would otherwise learn the same observations again when the namespace is loaded.
        if learner.last_number > self._saved[namespace]:
            self._save(namespace, learner)
        del self._saved[namespace]
        self._unwatched.pop(namespace, None)

    def _load(self, namespace: str) -> Learner:
        # Read before the snapshot, which another proxy may replace before it deletes the observations that it includes.
        pruned = self._observations.last_pruned_number(namespace)
        snapshot = self._observations.snapshot(namespace)
        learner = Learner.from_json(snapshot, self.max_error) if snapshot is not None else None
        if learner is None:
            learner = Learner.new(self._prior, self.max_error)
            learner.last_number = pruned
            # The initial state must be the same on all proxies, but the prior changes.
            self._observations.save_snapshot(namespace, pruned, learner.to_json())
        elif learner.last_number < pruned:
            _log.warning(
                "namespace %s: the saved state of the policy `learned` is from before observation %d, but observations are"
                " deleted up to %d: the policy continues without those between",
                namespace[:12],
                learner.last_number + 1,
                pruned,
            )
            learner.last_number = pruned
        return learner

    def status(self, namespace: str) -> LearningStatus:
        with self._lock:
            learner = self.learner(namespace)
            hits = self._pending.get(namespace, ServedHits())
            by_checked = learner.served_by_checked + hits.by_checked
            served = learner.level.served + hits.count
            level = replace(learner.level, served=served, risk=learner.level.risk + hits.risk, checked_risk=0.0)
        different, undecided = round(learner.num_checked_wrong), round(learner.num_checked_undecided)
        equal = round(learner.num_checked - learner.num_checked_wrong)
        is_compared = learner.num_checked > 0 and not learner.answers_vary
        is_estimated = not served or learner.decides or is_compared
        wrong_share = learner.num_checked_wrong / learner.num_checked if learner.num_checked else learner.checked_error
        most_of_checked = math.ceil(by_checked * checked_interval(equal, different, undecided)[1])
        return LearningStatus(
            learner.num_comparisons,
            learner.decides,
            level.error_limit,
            served,
            level.total_risk + by_checked * wrong_share if is_estimated else None,
            min(served, level.most_wrong + most_of_checked) if is_estimated else served,
            self.max_error,
            level.servable_request_share,
            sum(odds > 0.1 for odds in learner.class_evidence.odds.values()),
            learner.num_equal,
            learner.num_undecided,
            learner.num_contradicted,
            by_checked,
            equal,
            different,
            undecided,
            serves_checked=self.checked is not None and learner.may_serve_checked,
        )

    def warning(self, namespace: str) -> str | None:
        """Return `LearningStatus.warning`, without the time for the rest of the status."""
        learner = self.learner(namespace)
        return learning_warning(learner.num_contradicted, learner.num_equal, learner.num_undecided)

    def statuses(self) -> dict[str, LearningStatus]:
        return {namespace: self.status(namespace) for namespace in list(self._learners)}


def _max_error(limits: Limits) -> float:
    return math.inf if limits.max_error is None else limits.max_error


def _without_other_features(observation: Observation) -> Observation:
    """Return an observation of another version, which computes other features, without its features."""
    features = observation.features
    return observation if features is None or len(features) == len(FEATURES) else replace(observation, features=None)
