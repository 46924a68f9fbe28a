"""The policy `threshold`: cosine similarity alone."""

from collections.abc import Sequence

from kvproxy.index.guards import GUARDS, Guard
from kvproxy.index.observations import Observations
from kvproxy.index.policies.policy import Decision, Limits, Neighbour
from kvproxy.index.policies.screen import screen


class ThresholdPolicy:
    """Accepts from a cosine similarity on, unless a guard vetoes.

    Args:
        threshold: least similarity.
        guards: vetoes; none for the cosine alone.
    """

    name = "threshold"
    learns = False
    scorer = "cosine"

    def __init__(self, threshold: float, guards: Sequence[Guard] = GUARDS) -> None:
        self.threshold = threshold
        self._guards = tuple(guards)

    def decide(self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits()) -> list[Decision]:
        refused = screen(question, neighbours, max(self.threshold, limits.similarity or 0.0), self._guards)
        return [
            refusal or Decision("accepted", score=neighbour.similarity)
            for refusal, neighbour in zip(refused, neighbours, strict=True)
        ]

    def learn(self, observations: Observations, added: int) -> None:
        """A fixed threshold learns nothing."""
