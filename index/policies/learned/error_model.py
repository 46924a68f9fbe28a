"""Estimates the probability that a neighbour's answer is wrong."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

# Computed by training/learned_prior.py from Banking77 (Casanueva et al. 2020, CC BY 4.0).
WEIGHTS = (-1.274, -0.31, 0.966, 0.864, 1.167, 1.125, 1.081)
COVARIANCE = (
    (3.947, 0.184, -0.789, 0.578, -0.17, -0.508, -2.241),
    (0.184, 3.232, -0.761, -0.103, -2.89, 0.554, 0.194),
    (-0.789, -0.761, 0.958, -0.454, 0.831, 0.035, -0.451),
    (0.578, -0.103, -0.454, 0.544, 0.03, -0.299, 0.501),
    (-0.17, -2.89, 0.831, 0.03, 3.095, -0.576, -0.361),
    (-0.508, 0.554, 0.035, -0.299, -0.576, 0.714, -0.532),
    (-2.241, 0.194, -0.451, 0.501, -0.361, -0.532, 3.763),
)
NUM_NEIGHBOURS = 24
FEATURES = ("constant", "cosine", "margin", "rivals", "density", "votes", "company")
_WEIGHT_DISTANCE = 0.05
_NEAREST = 5
_MAX_MARGIN = 5.0


def compute_features(cosines: Sequence[float], classes: Sequence[str]) -> np.ndarray:
    """Return the error model's inputs for the nearest of several neighbours, `[len(FEATURES)]`, scaled to about 1:

    - `cosine` of the nearest neighbour;
    - `margin`: difference to the cosine of the nearest neighbour of another class;
    - `rivals`: negative logarithm of the share of other classes among the neighbours, weighted by closeness;
    - `density`: mean cosine of the nearest five;
    - `votes`: share of the nearest neighbour's class among the nearest five;
    - `company`: whether another neighbour has the nearest neighbour's class.
    """
    near = np.asarray(cosines, dtype=np.float64)
    own = np.fromiter((name == classes[0] for name in classes), bool, len(classes))
    other = float(near[~own][0]) if not own.all() else float(near[-1])
    weights = np.exp((near - near[0]) / _WEIGHT_DISTANCE)
    rivals = float(weights[~own].sum() / weights.sum())
    return np.array(
        [
            1.0,
            (near[0] - 0.8) * 5,
            min((near[0] - other) * 10, _MAX_MARGIN),
            -np.log(rivals + 0.01) - 2,
            (near[:_NEAREST].mean() - 0.7) * 5,
            own[:_NEAREST].mean() * 2,
            float(own.sum() > 1),
        ]
    )


_BISECTIONS = 30
_MAX_OBSERVATION_WEIGHT = 8.0
_MAX_JUNK_SHARE = 0.03
# With each comparison, the covariance moves towards `COVARIANCE` by this share, because stored questions become denser.
_FORGOTTEN = 1e-4
_INITIAL_UNCERTAINTY = 0.3  # Of `COVARIANCE`: a new namespace is less uncertain than one whose questions have changed.
_CLASS_VARIANCE = 0.3
_MAX_CLASSES = 4096
_NO_EFFECT = (0.0, _CLASS_VARIANCE)


@dataclass(slots=True)
class ErrorModel:
    """Estimates the probability that the nearest neighbour's answer is wrong, by Bayesian logistic regression.

    The weights are common to all answer classes; each class has a random effect, because some classes are easily confused with
    others. `class_effects` has the mean and the variance of the effects that differ from the prior.

    A fresh answer is junk with the probability `junk_share`, whatever the features: it equals no other answer. A comparison
    with junk says nothing about the stored answer. `junk_share` is `num_junk / num_predictable`.

    Otherwise, an answer is right with the probability `(1 - random_error_share) * sigmoid(weights . features + effect)`: the
    features cannot predict random errors.
    """

    weights: np.ndarray
    covariance: np.ndarray
    num_junk: float = 0.5
    num_random_errors: float = 0.25
    num_predictable: float = 500.0
    class_effects: dict[str, tuple[float, float]] = field(default_factory=dict)

    def error_probability(self, features: np.ndarray, answer_class: str | None = None) -> float:
        effect = self.class_effects.get(answer_class, _NO_EFFECT)[0] if answer_class else 0.0
        return 1 - (1 - self.random_error_share) * _sigmoid(float(features @ self.weights) + effect)

    @property
    def random_error_share(self) -> float:
        return self.num_random_errors / self.num_predictable

    @property
    def junk_share(self) -> float:
        return min(_MAX_JUNK_SHARE, self.num_junk / self.num_predictable)

    def add_junk(self) -> bool:
        """Count a junk answer; return False if there would be too many."""
        is_probable = self.num_junk + 1 <= _MAX_JUNK_SHARE * self.num_predictable
        self.num_junk += is_probable
        return is_probable

    def junk_probability(self, error: float) -> float:
        """Return the probability that a fresh answer, which equals no other one, is junk if the stored one seemed right."""
        junk = self.junk_share * (1 - error)
        return junk / (junk + error + 1e-12)

    def learn(
        self,
        features: np.ndarray,
        right: bool,
        evidence: float = 1.0,
        comparison_probability: float = 1.0,
        answer_class: str | None = None,
    ) -> None:
        """Update the weights and the class's effect after a comparison, by the mode of their distribution along its gradient.

        An answer that the model expects to be wrong has less influence, because it would not be served.

        Args:
            evidence: the probability that no changed answer explains the result.
            comparison_probability: the probability with which this comparison was made.
            answer_class: class of the stored answer; None updates no effect.
        """
        effect, uncertainty = self.class_effects.get(answer_class, _NO_EFFECT) if answer_class else (0.0, 0.0)
        odds = float(features @ self.weights) + effect
        probability = _sigmoid(odds)
        slips = self.random_error_share
        slip = 0.0 if right else slips * probability / (slips * probability + 1 - probability + 1e-12)
        self.num_random_errors += slip * evidence
        self.num_predictable += probability**2
        weight = evidence * probability * (1 - slip) * min(1 / comparison_probability, _MAX_OBSERVATION_WEIGHT)
        gain = self.covariance @ features
        variance = float(features @ gain) + uncertainty
        step = _mode_step(odds, variance, float(right), weight)
        after = _sigmoid(odds + step * variance)
        curvature = weight * after * (1 - after)
        shrinkage = curvature / (1 + curvature * variance)
        covariance = self.covariance - np.outer(gain, gain) * shrinkage
        self.covariance = covariance + (np.array(COVARIANCE) - covariance) * _FORGOTTEN
        self.weights = self.weights + gain * step
        if answer_class:
            self.class_effects.pop(answer_class, None)
            self.class_effects[answer_class] = effect + uncertainty * step, uncertainty * (1 - uncertainty * shrinkage)
            if len(self.class_effects) > _MAX_CLASSES:
                del self.class_effects[next(iter(self.class_effects))]


def _mode_step(odds: float, variance: float, right: float, weight: float) -> float:
    """Solve `step = weight * (right - sigmoid(odds + step * variance))`, whose right side decreases, by bisection."""
    low, high = (0.0, weight) if right else (-weight, 0.0)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if middle < weight * (right - _sigmoid(odds + middle * variance)):
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _sigmoid(odds: float) -> float:
    return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0


PRIOR_ERRORS = 2.0
"""`ServingLevel.expected` of a new namespace. It is below `MIN_EXPECTED_ERRORS`, so each namespace needs comparisons."""


@dataclass(slots=True)
class ErrorModelPrior:
    """The initial error model of new namespaces, which learns from the `Observation`s of all namespaces.

    `seen_wrong` and `seen_expected` are sums of `ServingLevel.wrong` and `ServingLevel.expected` over all namespaces.
    """

    shared: ErrorModel = field(default_factory=lambda: ErrorModel(np.array(WEIGHTS), np.array(COVARIANCE)))
    seen_wrong: float = PRIOR_ERRORS
    seen_expected: float = PRIOR_ERRORS

    def error_model(self) -> ErrorModel:
        return ErrorModel(self.shared.weights.copy(), np.array(COVARIANCE) * _INITIAL_UNCERTAINTY)

    @property
    def initial_wrong_count(self) -> float:
        return PRIOR_ERRORS * max(1.0, self.seen_wrong / self.seen_expected)

    def learn(self, features: np.ndarray, error: float, right: bool, max_counted_error: float) -> None:
        self.shared.learn(features, right)
        if error <= max_counted_error:
            self.seen_wrong += not right
            self.seen_expected += error
