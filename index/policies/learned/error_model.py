"""Estimates the probability that a neighbour's answer is wrong."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import compress

import numpy as np

# Computed by training/learned_prior.py from Banking77 (Casanueva et al. 2020, CC BY 4.0).
WEIGHTS = (-0.802, 0.369, 0.965, 0.006, 0.876, 0.432, 0.739, 0.802, -0.741, -0.191, 1.46)
COVARIANCE = (
    (4.143, 0.052, -0.866, 0.668, -0.156, -0.493, -2.152, 0.057, -0.088, 0.121, -0.188),
    (0.052, 3.549, -0.762, -0.265, -2.927, 0.504, 0.157, 0.005, -0.121, -0.121, 0.249),
    (-0.866, -0.762, 1.112, -0.52, 0.849, 0.034, -0.437, 0.083, -0.064, -0.024, -0.106),
    (0.668, -0.265, -0.52, 0.749, 0.072, -0.241, 0.598, -0.029, 0.092, -0.052, -0.293),
    (-0.156, -2.927, 0.849, 0.072, 3.291, -0.642, -0.385, -0.047, -0.009, -0.105, 0.021),
    (-0.493, 0.504, 0.034, -0.241, -0.642, 0.833, -0.513, -0.044, 0.032, 0.028, -0.242),
    (-2.152, 0.157, -0.437, 0.598, -0.385, -0.513, 3.874, -0.058, -0.029, 0.097, -0.213),
    (0.057, 0.005, 0.083, -0.029, -0.047, -0.044, -0.058, 0.466, -0.09, -0.301, -0.06),
    (-0.088, -0.121, -0.064, 0.092, -0.009, 0.032, -0.029, -0.09, 0.322, -0.067, 0.027),
    (0.121, -0.121, -0.024, -0.052, -0.105, 0.028, 0.097, -0.301, -0.067, 0.656, 0.038),
    (-0.188, 0.249, -0.106, -0.293, 0.021, -0.242, -0.213, -0.06, 0.027, 0.038, 1.086),
)
NUM_NEIGHBOURS = 24
FEATURES = (
    *("constant", "cosine", "margin", "rivals", "density", "votes", "company", "words", "rival words", "overlap"),
    "centres",
)
_WEIGHT_DISTANCE = 0.05
_NEAREST = 5
_MAX_MARGIN = 5.0
_COMPARED = 16  # Neighbours whose words are compared.
_MAX_READ = 2000  # Characters.
_LEAST_LENGTH = 1e-6
# Each character of Chinese, Japanese, Korean, and Thai is a word.
_UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W{_UNSPACED}]+")


def compute_features(
    cosines: Sequence[float],
    classes: Sequence[str],
    question: str,
    stored_questions: Sequence[str],
    vectors: Sequence[np.ndarray | None] = (),
) -> np.ndarray:
    """Return the error model's inputs for the nearest of several neighbours, `[len(FEATURES)]`, scaled to about 1:

    - `cosine` of the nearest neighbour;
    - `margin`: difference to the cosine of the nearest neighbour of another class;
    - `rivals`: negative logarithm of the share of other classes among the neighbours, weighted by closeness;
    - `density`: mean cosine of the nearest five;
    - `votes`: share of the nearest neighbour's class among the nearest five;
    - `company`: whether another neighbour has the nearest neighbour's class;
    - `words`: share of the question's words that stored questions of the nearest neighbour's class contain;
    - `rival words`: the largest such share of another class;
    - `overlap`: the largest share of common words of the question and a stored one of the nearest neighbour's class;
    - `centres`: difference between the cosine of the centre of the nearest neighbour's class and that of another class. Centres
      are those of the neighbours; with few neighbours, the cosine is reduced towards that of the farthest neighbour.

    `stored_questions` and `vectors` are those of the neighbours; a class without vectors is taken for a point.
    """
    nearest, own = cosines[0], [name == classes[0] for name in classes]
    weights = [math.exp((cosine - nearest) / _WEIGHT_DISTANCE) for cosine in cosines]
    rivals = 1 - sum(compress(weights, own)) / sum(weights)
    other = next((cosine for cosine, is_own in zip(cosines, own, strict=True) if not is_own), cosines[-1])
    near = cosines[:_NEAREST]
    known, rival_known, overlap = _word_shares(question, stored_questions[:_COMPARED], classes[:_COMPARED])
    return np.array(
        [
            1.0,
            (nearest - 0.8) * 5,
            min((nearest - other) * 10, _MAX_MARGIN),
            -math.log(max(0.0, rivals) + 0.01) - 2,
            (sum(near) / len(near) - 0.7) * 5,
            sum(own[:_NEAREST]) / len(near) * 2,
            float(sum(own) > 1),
            known * 4 - 3,
            rival_known * 4 - 2,
            overlap * 4 - 2,
            _centre_margin(cosines, classes, vectors) * 10,
        ]
    )


def _centre_margin(cosines: Sequence[float], classes: Sequence[str], vectors: Sequence[np.ndarray | None]) -> float:
    """Return the feature `centres`, not scaled."""
    members: dict[str, list[int]] = {}
    for place, name in enumerate(classes):
        members.setdefault(name, []).append(place)

    def centre_cosine(places: list[int]) -> float:
        known = [vector for place in places if place < len(vectors) and (vector := vectors[place]) is not None]
        length = float(np.linalg.norm(np.sum(known, axis=0))) if len(known) == len(places) else len(places)
        cosine = sum(cosines[place] for place in places) / max(length, _LEAST_LENGTH)
        return (len(places) * cosine + cosines[-1]) / (len(places) + 1)

    own = centre_cosine(members.pop(classes[0]))
    return own - max(map(centre_cosine, members.values()), default=cosines[-1])


def _word_shares(question: str, stored_questions: Sequence[str], classes: Sequence[str]) -> tuple[float, float, float]:
    """Return the features `words`, `rival words`, and `overlap`, not scaled."""
    asked, own, overlap = question_words(question), classes[0], 0.0
    known: dict[str, frozenset[str]] = {}
    for stored, name in zip(stored_questions, classes, strict=True):
        other = question_words(stored)
        shared = asked & other
        known[name] = known[name] | shared if name in known else shared
        if name == own and shared:
            overlap = max(overlap, len(shared) / (len(asked) + len(other) - len(shared)))
    count = max(1, len(asked))
    rival = max((len(words) for name, words in known.items() if name != own), default=0)
    return len(known[own]) / count, rival / count, overlap


@lru_cache(maxsize=4096)
def question_words(text: str) -> frozenset[str]:
    """Return the words of a question in lower case. Of unspaced scripts, each character is a word."""
    return frozenset(_WORD.findall(text[:_MAX_READ].lower()))


_BISECTIONS = 30
_MAX_OBSERVATION_WEIGHT = 8.0
_MAX_JUNK_SHARE = 0.03
_SINGLE_IF_WRONG = 0.3
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

    def add_single(self, error: float) -> float:
        """Count a fresh answer that equals no other one; return the probability that it is junk.

        Args:
            error: estimated probability that the stored answer was wrong. Then the fresh answer may be a rare right one.
        """
        junk = self.junk_share * (1 - error)
        most = max(0.0, _MAX_JUNK_SHARE * self.num_predictable - self.num_junk)
        probability = min(most, junk / (junk + _SINGLE_IF_WRONG * error + 1e-12))
        self.num_junk += probability
        return probability

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
_PRIOR_FACTOR = 2.0  # The weights from other namespaces underestimate small errors by about this factor.


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
        return PRIOR_ERRORS * max(_PRIOR_FACTOR, self.seen_wrong / self.seen_expected)

    def learn(self, features: np.ndarray, error: float, right: bool, max_counted_error: float) -> None:
        self.shared.learn(features, right)
        if error <= max_counted_error:
            self.seen_wrong += not right
            self.seen_expected += error
