"""The learned policy's state in one namespace. It depends only on the sequence of the namespace's observations.

Therefore, all proxies that share a store compute the same state.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvproxy.index.policies.learned.class_evidence import ClassEvidence
from kvproxy.index.policies.learned.error_model import (
    FEATURES,
    PRIOR_ERRORS,
    ErrorModel,
    ErrorModelPrior,
    compute_features,
)
from kvproxy.index.policies.learned.serving_level import COMPARISON_DECAY, ServingLevel
from kvproxy.index.policies.learned.surprises import Surprise, Surprises
from kvproxy.index.policies.policy import MIN_COMPARED, Neighbour
from kvproxy.index.store.observations import Observation

_VERSION = 10
MIN_EXPECTED_ERRORS = 8.0
"""The policy decides without `checked` once the sum of the estimated errors of compared answers reaches this number."""
_EXPLORED = 0.2
_LEAST_EXPLORED = 0.01
_KNOWN_ERRORS = 50.0
_OBSOLETE_MARGIN = 0.05
_PROBABLE_CHANGE = 0.4
_NEW_IF_WRONG = 0.2
"""The probability that the fresh answer equals no known one if the question needs another answer than the nearest."""
_MIN_COMPARISONS = 50
_MAX_CHANGE_FACTOR = 3.0
_CHECKED_EXPLORED, _CHECKED_LEAST = 0.2, 0.05
_UNEXPLORED = 10  # First hits, so that a new user sees them.
_WELL_EXPLORED = 10  # Comparisons of hits of `checked`, after which fewer are explored.
_MIN_CHECKED = 30
_CHECKED_WRONG, _CHECKED_SEEN = 0.5, 50.0  # Prior of `checked_error`.
_LEAST_EQUAL_SHARE = 0.1
_CHECKED_DECAY = 1 - 1 / 500


@dataclass(frozen=True, slots=True)
class ErrorEstimate:
    """The estimated error of the nearest neighbour whose answer class is not obsolete, and the neighbour's index.

    Attributes:
        similarity: cosine of the nearest neighbour whose question needs this answer; its own answer may be obsolete.
        score_error: the probability that the question needs another answer.
        change: the probability that the right answer has changed since it was stored.
        risk_of_changes: see `ClassEvidence.risk_of_changes`.
        is_only_member: no other neighbour has this class.
    """

    index: int
    features: np.ndarray
    similarity: float
    score_error: float
    change: float
    risk_of_changes: float
    is_only_member: bool

    @property
    def error(self) -> float:
        return self.score_error + (1 - self.score_error) * self.change


@dataclass(slots=True)
class Learner:
    """The state of the policy `learned` in one namespace, after the observations up to the number `last_number`.

    `num_checked` is the number of decided comparisons whose cached answer the policy `checked` accepts, and
    `num_checked_undecided` that of undecided ones; older ones count less.
    """

    error_model: ErrorModel
    level: ServingLevel
    class_evidence: ClassEvidence = field(default_factory=ClassEvidence)
    surprises: Surprises = field(default_factory=Surprises)
    num_comparisons: int = 0
    num_checked: float = 0.0
    num_checked_wrong: float = 0.0
    served_by_checked: int = 0
    num_equal: int = 0
    num_undecided: int = 0
    last_number: int = 0
    num_checked_undecided: float = 0.0

    @classmethod
    def new(cls, prior: ErrorModelPrior, max_error: float) -> "Learner":
        level = ServingLevel(max_error, wrong=prior.initial_wrong_count, expected=PRIOR_ERRORS)
        level.update_error_factor()
        return cls(prior.error_model(), level)

    @property
    def clock(self) -> int:
        """Number of the namespace's requests with a neighbour."""
        return self.level.served + self.num_comparisons + self.num_undecided

    def estimate(self, question: str, neighbours: Sequence[Neighbour]) -> ErrorEstimate | None:
        """Estimate the error of the nearest neighbour whose answer is up to date; None without one.

        The questions of an obsolete class count for the class of the new answer, but its answers are not served.
        """
        evidence = self.class_evidence
        names = [evidence.current_class(neighbour.answer) for neighbour in neighbours]
        places = [place for place, name in enumerate(names) if not evidence.is_obsolete(name)]
        if not any(neighbours[place].answer == names[places[0]] for place in places):
            # No neighbour has the new answer.
            names = [neighbour.answer for neighbour in neighbours]
            places = [place for place, name in enumerate(names) if not evidence.is_obsolete(name)]
        if not places:
            return None
        classes = [names[place] for place in places]
        near = [neighbours[place] for place in places]
        features = compute_features(
            [neighbour.similarity for neighbour in near],
            classes,
            question,
            [neighbour.prompt for neighbour in near],
            [neighbour.vector for neighbour in near],
        )
        score_error = self.error_model.error_probability(features, classes[0])
        change = evidence.change_probability(classes[0], self.clock)
        index = next(place for place in places if neighbours[place].answer == classes[0])
        if neighbours[0].similarity - neighbours[places[0]].similarity > _OBSOLETE_MARGIN:
            # The question probably belongs to the obsolete class, whose new answer is not stored yet.
            change += (1 - change) * 0.5
        risk = max(change, evidence.risk_of_changes(classes[0], self.clock))
        similarity = neighbours[places[0]].similarity
        return ErrorEstimate(index, features, similarity, score_error, change, risk, classes.count(classes[0]) == 1)

    def is_current(self, answer_class: str) -> bool:
        """Whether the right answer of a class has probably not changed; True if nothing is learned because the `answers_vary`."""
        evidence = self.class_evidence
        if self.answers_vary:
            return True
        change = evidence.change_probability(answer_class, self.clock)
        return not evidence.is_obsolete(answer_class) and change <= _MAX_CHANGE_FACTOR * self.level.max_error

    def is_within_limits(self, estimate: ErrorEstimate) -> bool:
        is_recent = estimate.change <= _MAX_CHANGE_FACTOR * self.level.max_error
        return is_recent and estimate.score_error + estimate.risk_of_changes <= self.level.error_limit

    @property
    def decides(self) -> bool:
        """Whether enough is known that the estimates decide without `checked`."""
        level = self.level
        is_known = level.expected >= MIN_EXPECTED_ERRORS or level.num_compared >= MIN_COMPARED
        return level.error_limit > 0 and is_known

    @property
    def knows_classes(self) -> bool:
        """Whether the estimates may overrule `checked`: not if they are unproven, or if no judge finds answers equal."""
        return self.decides and not self.answers_vary

    def exploration_share(self, error: float) -> float:
        known = min(1.0, math.sqrt(_KNOWN_ERRORS / max(self.level.expected, 1.0)))
        return min(0.5, max(_LEAST_EXPLORED, _EXPLORED * known * math.sqrt(error)))

    @property
    def checked_error(self) -> float:
        """The estimated share of wrong answers among those that the policy `checked` accepted.

        If hardly any of them equal the fresh answers, a sampled model probably contradicts itself, or the judge cannot compare
        its answers. The differences are then no evidence.
        """
        if self.answers_vary:
            return _CHECKED_WRONG / _CHECKED_SEEN
        return (_CHECKED_WRONG + self.num_checked_wrong) / (_CHECKED_SEEN + self.num_checked)

    @property
    def answers_vary(self) -> bool:
        """Whether less than a tenth of the compared answers equal the fresh ones, also of those that `checked` accepted."""
        num_right = self.num_checked - self.num_checked_wrong
        return (
            num_right < _LEAST_EQUAL_SHARE * self.num_checked
            and self.num_equal < _LEAST_EQUAL_SHARE * self.num_comparisons
        )

    @property
    def num_contradicted(self) -> int:
        """See `LearningStatus.contradicted`."""
        return round(self.num_checked_wrong) if self.answers_vary else 0

    def early_exploration_share(self, num_pending: int) -> float:
        """Return the share of hits that are forwarded while they depend on `checked`: its misses say nothing about its hits.

        Args:
            num_pending: hits that no observation includes yet.
        """
        if self.level.served + num_pending < _UNEXPLORED:
            return 0.0
        # If the judge leaves answers undecided, more of them would not help.
        known = max(self.num_checked + self.num_undecided, _WELL_EXPLORED)
        return max(_CHECKED_LEAST, _CHECKED_EXPLORED * math.sqrt(_WELL_EXPLORED / known))

    @property
    def may_serve_checked(self) -> bool:
        """Whether answers that the policy `checked` accepts may be served.

        `checked_error` must be within `max_error`. Once the policy `decides`, it must be within half of
        `max_error`, and enough answers of `checked` must have been compared. If the `answers_vary`, nothing is learned, so
        `checked` decides as in a new namespace.
        """
        within = self.checked_error <= self.level.max_error
        if self.answers_vary:
            return within
        if self.decides and not (self.num_checked >= _MIN_CHECKED and self.checked_error <= self.level.max_error / 2):
            return False
        return within and (self.num_comparisons < _MIN_COMPARISONS or self.level.bound_allows(self.checked_error))

    def add(self, observation: Observation) -> None:
        """Add an observation. After adding several, call `level.update` once, because it is slow."""
        self.last_number = max(self.last_number, observation.number)
        self.level.add_served(observation.served, observation.risk)
        self.served_by_checked += observation.served_by_checked
        evidence = self.class_evidence
        evidence.changes.add_hits(observation.hits, self.clock)
        if observation.joined and not observation.is_new:
            # An answer that another one equals is no junk.
            self.surprises.add_members([observation.joined, *observation.merged])
        evidence.merge(observation.joined, observation.merged)
        if observation.joined and not observation.is_new:
            evidence.add_member(observation.joined, self.clock)
        elif observation.joined:
            evidence.confirm(observation.joined, self.clock)
        self.level.add_audits(observation.audits)
        if observation.checked:
            self.num_checked_undecided *= _CHECKED_DECAY
        if observation.source == "undecided":
            self.num_undecided += 1
            self.num_checked_undecided += observation.checked
            return
        self.num_equal += observation.source == "answer" and observation.right
        if observation.checked:
            self.num_checked = self.num_checked * _CHECKED_DECAY + 1
            self.num_checked_wrong = self.num_checked_wrong * _CHECKED_DECAY + (not observation.right)
        self.level.checked_risk = self.served_by_checked * self.checked_error
        if observation.features is None or observation.error is None:
            return
        features = np.array(observation.features)
        counted = self.class_evidence.first_unlifted_guard(observation.answer, observation.vetoes) is None
        expected = self.error_model.error_probability(features, observation.answer)
        self.num_comparisons += 1
        if observation.repeat:
            self.level.num_repeats += 1
            self.level.num_judged_different += not observation.right
        # If a veto counts, the answer is not served, so its error does not matter.
        if counted:
            self._add_counted(observation, features, expected)
        self._update_changes()
        self.class_evidence.update_guards(observation.answer, observation.vetoes, observation.right)

    def _update_changes(self) -> None:
        level, evidence = self.level, self.class_evidence
        level.changed_wrong, level.changed_expected = evidence.changed_wrong
        level.wrong_by_change, level.change_variance = evidence.wrong_by_change
        level.expected_by_change = evidence.changes.expected_wrong
        level.num_changes = evidence.changes.num_changes

    def _add_counted(self, observation: Observation, features: np.ndarray, expected: float) -> None:
        evidence, level, model = self.class_evidence, self.level, self.error_model
        right, answer = observation.right, observation.answer
        # The answer was probably obsolete, or the question seemed to belong to an obsolete class, so it was not to be served.
        change = max(0.0, (observation.error or 0.0) - expected) / (1 - expected)
        is_counted = change < _PROBABLE_CHANGE and level.add_comparison(expected, right)
        known = evidence.change_probability(answer, self.clock)
        contradictions = evidence.contradictions.get(answer)
        was_known = evidence.changes.was_known(observation.joined, answer)
        explained_wrong, explained = evidence.add_comparison(
            answer,
            expected * (_NEW_IF_WRONG if observation.is_new else 1.0) + model.junk_share,
            right,
            counted_error=expected if is_counted else 0.0,
            joined=observation.joined,
            is_new=observation.is_new,
            clock=self.clock,
            is_near_obsolete=change - known > _PROBABLE_CHANGE * (1 - known),
        )
        level.wrong = max(0.0, level.wrong - explained_wrong)
        level.expected = max(0.0, level.expected - explained)
        if right or not is_counted or was_known:
            changed = 0.0 if right else max(change, evidence.change_probability(answer, self.clock))
            model.learn(features, right, 1 - changed, observation.chance, answer)
        else:
            surprise = Surprise(answer, tuple(features.tolist()), observation.chance, self.num_comparisons)
            self.surprises.add(surprise, observation.joined, is_single=observation.is_new)
        if explained_wrong and contradictions is not None:
            self.surprises.explain(contradictions.joined)
        self._learn_from_surprises()

    def _learn_from_surprises(self) -> None:
        for surprise in self.surprises.take_errors(self.class_evidence):
            self._learn_error(surprise)
        for surprise in self.surprises.take_singles(self.num_comparisons):
            error = self.error_model.error_probability(np.array(surprise.features), surprise.answer_class)
            junk = self.error_model.add_single(error)
            age = self.num_comparisons - surprise.number
            self.level.wrong = max(0.0, self.level.wrong - junk * COMPARISON_DECAY**age)
            self._learn_error(surprise, 1 - junk)

    def _learn_error(self, error: Surprise, evidence: float = 1.0) -> None:
        self.error_model.learn(np.array(error.features), False, evidence, error.chance, error.answer_class)

    def to_json(self) -> str:
        model, level, errors = self.error_model, self.level, self.class_evidence
        return json.dumps(
            {
                "version": _VERSION,
                "features": FEATURES,
                "weights": model.weights.tolist(),
                "covariance": model.covariance.tolist(),
                "effects": model.class_effects,
                "surprises": self.surprises.document(),
                "shares": [model.num_junk, model.num_random_errors, model.num_predictable],
                "served": level.served,
                "risk": level.risk,
                "seen": [level.wrong, level.expected],
                "compared": level.num_compared,
                "repeats": [level.num_repeats, level.num_judged_different],
                "spread": level.error_histogram.tolist(),
                "classes": errors.document(),
                "counts": [
                    self.num_comparisons,
                    self.num_checked,
                    self.num_checked_wrong,
                    self.served_by_checked,
                    self.num_equal,
                    self.num_undecided,
                    self.last_number,
                ],
                "checked_undecided": self.num_checked_undecided,
                "audits": level.audits.tolist(),
            }
        )

    @classmethod
    def from_json(cls, text: str, max_error: float) -> "Learner | None":
        """Restore a saved state; return None if another version saved it."""
        state = json.loads(text)
        if state.get("version") != _VERSION or tuple(state["features"]) != FEATURES:
            return None
        level = ServingLevel(max_error, state["served"], state["risk"], *state["seen"], *state["repeats"])
        level.num_compared = state["compared"]
        level.error_histogram, level.audits = np.array(state["spread"]), np.array(state["audits"])
        effects = {name: (mean, variance) for name, (mean, variance) in state["effects"].items()}
        model = ErrorModel(np.array(state["weights"]), np.array(state["covariance"]), *state["shares"])
        model.class_effects = effects
        errors = ClassEvidence.from_document(state["classes"])
        learner = cls(model, level, errors, Surprises.from_document(state["surprises"]), *state["counts"])
        learner.num_checked_undecided = state.get("checked_undecided", 0.0)
        level.checked_risk = learner.served_by_checked * learner.checked_error
        learner._update_changes()
        level.update()
        return learner
