"""The learned policy's state in one namespace. It depends only on the sequence of the namespace's observations.

Therefore, all proxies that share a store compute the same state.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvproxy.index.policies.learned.answer_classes import ClassEvidence
from kvproxy.index.policies.learned.error_model import (
    FEATURES,
    PRIOR_ERRORS,
    ErrorModel,
    ErrorModelPrior,
    compute_features,
)
from kvproxy.index.policies.learned.serving_level import ServingLevel
from kvproxy.index.policies.policy import Neighbour
from kvproxy.index.store.observations import Observation

_VERSION = 2
MIN_EXPECTED_ERRORS = 8.0
"""The policy decides without `checked` once the sum of the estimated errors of compared answers reaches this number."""
_EXPLORED = 0.2
_LEAST_EXPLORED = 0.01
_KNOWN_ERRORS = 50.0
_OBSOLETE_MARGIN = 0.05
_MIN_COMPARISONS = 50
_CHECKED_EXPLORED, _CHECKED_LEAST = 0.2, 0.05
_MIN_CHECKED = 30
_CHECKED_WRONG, _CHECKED_SEEN = 0.5, 50.0  # Prior of `checked_error`.
_CHECKED_DECAY = 1 - 1 / 500


@dataclass(frozen=True, slots=True)
class ErrorEstimate:
    """The estimated error of the nearest neighbour whose answer class is not obsolete, and the neighbour's index.

    `is_only_member`: no other neighbour has this class.
    """

    index: int
    features: np.ndarray
    error: float
    is_only_member: bool


@dataclass(slots=True)
class Learner:
    """The state of the policy `learned` in one namespace, after the observations up to the number `last_number`.

    `num_checked` is the number of comparisons whose cached answer the policy `checked` accepts; older ones count less.
    """

    error_model: ErrorModel
    level: ServingLevel
    class_evidence: ClassEvidence = field(default_factory=ClassEvidence)
    num_comparisons: int = 0
    num_checked: float = 0.0
    num_checked_wrong: float = 0.0
    served_by_checked: int = 0
    num_equal: int = 0
    num_undecided: int = 0
    last_number: int = 0

    @classmethod
    def new(cls, prior: ErrorModelPrior, max_error: float) -> "Learner":
        level = ServingLevel(max_error, wrong=prior.initial_wrong_count, expected=PRIOR_ERRORS)
        level.update_error_factor()
        return cls(prior.error_model(), level)

    def estimate(self, neighbours: Sequence[Neighbour]) -> ErrorEstimate | None:
        places = [place for place, each in enumerate(neighbours) if not self.class_evidence.is_obsolete(each.answer)]
        if not places:
            return None
        classes = [neighbours[place].answer for place in places]
        features = compute_features([neighbours[place].similarity for place in places], classes)
        error = self.error_model.error_probability(features)
        error += (1 - error) * self.class_evidence.change_probability(classes[0])
        if neighbours[0].similarity - neighbours[places[0]].similarity > _OBSOLETE_MARGIN:
            # The question probably belongs to the obsolete class, whose new answer is not stored yet.
            error += (1 - error) * 0.5
        return ErrorEstimate(places[0], features, error, classes.count(classes[0]) == 1)

    @property
    def decides_without_checked(self) -> bool:
        return self.level.error_limit > 0 and self.level.expected >= MIN_EXPECTED_ERRORS

    def exploration_share(self, error: float) -> float:
        known = min(1.0, math.sqrt(_KNOWN_ERRORS / max(self.level.expected, 1.0)))
        return min(0.5, max(_LEAST_EXPLORED, _EXPLORED * known * math.sqrt(error)))

    @property
    def checked_error(self) -> float:
        """The estimated share of wrong answers among those that the policy `checked` accepted."""
        return (_CHECKED_WRONG + self.num_checked_wrong) / (_CHECKED_SEEN + self.num_checked)

    @property
    def checked_exploration_share(self) -> float:
        if self.num_comparisons < _MIN_COMPARISONS:
            return 0.0  # The misses of `checked` are compared anyway.
        return max(_CHECKED_LEAST, _CHECKED_EXPLORED * math.sqrt(_MIN_CHECKED / max(self.num_checked, _MIN_CHECKED)))

    @property
    def may_serve_checked(self) -> bool:
        """Whether answers that the policy `checked` accepts may be served.

        `checked_error` must be within `max_error`. Once the policy `decides_without_checked`, it must be within half of
        `max_error`, and enough answers of `checked` must have been compared.
        """
        if self.decides_without_checked and not (
            self.num_checked >= _MIN_CHECKED and self.checked_error <= self.level.max_error / 2
        ):
            return False
        within = self.checked_error <= self.level.max_error
        return within and (self.num_comparisons < _MIN_COMPARISONS or self.level.bound_allows(self.checked_error))

    def add(self, observation: Observation) -> None:
        """Add an observation. After adding several, call `level.update` once, because it is slow."""
        self.last_number = max(self.last_number, observation.number)
        self.level.add_served(observation.served, observation.risk)
        self.served_by_checked += observation.served_by_checked
        self.class_evidence.merge(observation.joined, observation.merged)
        if observation.joined:
            self.class_evidence.add_member(observation.joined)
        self.level.add_audits(observation.audits)
        if observation.source == "undecided":
            self.num_undecided += 1
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
        expected = self.error_model.error_probability(features)
        self.num_comparisons += 1
        if observation.repeat:
            self.level.num_repeats += 1
            self.level.num_judged_different += not observation.right
        # If a veto counts, the answer is not served, so its error does not matter.
        if counted:
            self.level.add_comparison(observation.error, observation.right)
            self.error_model.learn(features, observation.right, observation.chance)
            self.class_evidence.add_comparison(observation.answer, expected, observation.right)
        self.class_evidence.update_guards(observation.answer, observation.vetoes, observation.right)

    def to_json(self) -> str:
        model, level, errors = self.error_model, self.level, self.class_evidence
        return json.dumps(
            {
                "version": _VERSION,
                "features": FEATURES,
                "weights": model.weights.tolist(),
                "covariance": model.covariance.tolist(),
                "slips": [model.num_random_errors, model.num_predictable],
                "served": level.served,
                "risk": level.risk,
                "seen": [level.wrong, level.expected],
                "compared": level.num_compared,
                "repeats": [level.num_repeats, level.num_judged_different],
                "spread": level.error_histogram.tolist(),
                "odds": errors.odds,
                "lifted": sorted(errors.lifted_guards),
                "counts": [
                    self.num_comparisons,
                    self.num_checked,
                    self.num_checked_wrong,
                    self.served_by_checked,
                    self.num_equal,
                    self.num_undecided,
                    self.last_number,
                ],
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
        model = ErrorModel(np.array(state["weights"]), np.array(state["covariance"]), *state["slips"])
        errors = ClassEvidence(state["odds"], {(name, guard) for name, guard in state["lifted"]})
        learner = cls(model, level, errors, *state["counts"])
        learner.level.checked_risk = learner.served_by_checked * learner.checked_error
        learner.level.update()
        return learner
