"""What one namespace has learned: a fold over its observations, in their order, and nothing else.

So two proxies on one store know the same, and so does a proxy that was killed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvproxy.index.policies.learned.class_errors import Doubts
from kvproxy.index.policies.learned.error_model import Score
from kvproxy.index.policies.learned.features import evidence
from kvproxy.index.policies.learned.prior import Prior
from kvproxy.index.policies.learned.serving_level import Level
from kvproxy.index.store.observations import Observation

ENOUGH = 8.0
"""Expected errors among the comparisons of a namespace from which on `checked` is not asked any more."""
_EXPLORED = 0.4
_LEAST_EXPLORED = 0.01
_KNOWN = 50.0  # Expected errors from which on less is explored.
_BEHIND = 0.05  # Cosine by which an entry may be farther than one of a class that is gone.
_NEW = 50  # Comparisons before which nothing is explored: a namespace so small has little to learn from.
_CHECKED_EXPLORED, _CHECKED_LEAST = 0.2, 0.05
_PROVED = 30  # Comparisons of what `checked` accepts from which on they say something.
_CHECKED_WRONG, _CHECKED_SEEN = (
    0.5,
    50.0,
)  # What is thought of `checked` in a namespace where nothing was seen: 1% wrong.


@dataclass(frozen=True, slots=True)
class Near:
    """A neighbour: its cosine, and the class of its answer."""

    cosine: float
    answer: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What is thought of the nearest neighbour that counts.

    Attributes:
        place: of the neighbour.
        features: see `evidence`.
        error: the probability that its answer is wrong.
        alone: nothing else is known to have the same answer.
    """

    place: int
    features: np.ndarray
    error: float
    alone: bool


@dataclass(slots=True)
class Learner:
    """The score, level and doubts of one namespace.

    Attributes:
        observed: comparisons that were taken in.
        checked_seen, checked_wrong: those of answers that `checked` would serve.
        number: of the last observation that was taken in.
    """

    score: Score
    level: Level
    doubts: Doubts = field(default_factory=Doubts)
    observed: int = 0
    checked_seen: int = 0
    checked_wrong: int = 0
    number: int = 0

    @classmethod
    def new(cls, prior: Prior, max_error: float) -> "Learner":
        """A namespace of which nothing was seen."""
        level = Level(max_error, wrong=prior.wrong, expected=prior.expected)
        level.measure()
        return cls(prior.score(), level)

    def find(self, near: Sequence[Near]) -> Finding | None:
        """What is thought of the nearest neighbour whose class is not gone; None without one."""
        places = [place for place, each in enumerate(near) if not self.doubts.gone(each.answer)]
        if not places:
            return None
        classes = [near[place].answer for place in places]
        features = evidence([near[place].cosine for place in places], classes)
        error = self.score.error(features)
        error += (1 - error) * self.doubts.changed(classes[0])
        if near[0].cosine - near[places[0]].cosine > _BEHIND:
            # The question is one of a class that is gone, whose new answer is not known here yet.
            error += (1 - error) * 0.5
        return Finding(places[0], features, error, classes.count(classes[0]) == 1)

    @property
    def ready(self) -> bool:
        """Whether enough was learned to decide without `checked`."""
        return self.level.level > 0 and self.level.expected >= ENOUGH

    def chance(self, error: float) -> float:
        """The share of what could be served with such an error that is compared instead: less, the more is known."""
        known = min(1.0, math.sqrt(_KNOWN / max(self.level.expected, 1.0)))
        return min(0.5, max(_LEAST_EXPLORED, _EXPLORED * known * math.sqrt(error)))

    @property
    def checked_error(self) -> float:
        """The share of wrong answers among what `checked` accepts here."""
        return (_CHECKED_WRONG + self.checked_wrong) / (_CHECKED_SEEN + self.checked_seen)

    @property
    def checked_chance(self) -> float:
        """The share of what `checked` accepts that is compared rather than served."""
        if self.observed < _NEW:
            return 0.0
        return max(_CHECKED_LEAST, _CHECKED_EXPLORED * math.sqrt(_PROVED / max(self.checked_seen, _PROVED)))

    @property
    def checked_allowed(self) -> bool:
        """Whether what `checked` accepts may be served.

        While it errs no more than it may, and leaves `learned` its share of the allowance; once that is ready, only where it has
        proved to be right here.
        """
        if self.ready and not (self.checked_seen >= _PROVED and self.checked_error <= self.level.max_error / 2):
            return False
        within = self.checked_error <= self.level.max_error
        return within and (self.observed < _NEW or self.level.affords(self.checked_error))

    def learn(self, seen: Observation) -> None:
        """Take in one observation, and decide by it from now on."""
        self.take(seen)
        self.level.settle()

    def take(self, seen: Observation) -> None:
        """Take in one of several observations; `level.settle` must follow the last."""
        self.number = max(self.number, seen.number)
        self.level.serve(seen.served, seen.risk)
        if seen.joined:
            self.doubts.joined(seen.joined)
        if seen.checked:
            self.checked_seen += 1
            self.checked_wrong += not seen.right
        if seen.features is None or seen.error is None:
            return
        features, stands = np.array(seen.features), self.doubts.standing(seen.answer, seen.vetoes)
        expected = self.score.error(features)
        self.observed += 1
        if seen.repeat:
            self.level.repeats += 1
            self.level.slips += not seen.right
        self.level.see(seen.error, seen.chance, seen.right, counted=stands is None)
        if stands is None:
            self.score.learn(features, seen.right)
            self.doubts.compared(seen.answer, expected, seen.right)
        self.doubts.across(seen.answer, seen.vetoes, seen.right)
