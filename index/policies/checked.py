"""The policy `checked`: neighbours by cosine, guards, then a verifier that reads both questions together."""

from collections.abc import Sequence

from kvproxy.index.guards import GUARDS, Guard
from kvproxy.index.observations import Observations
from kvproxy.index.policies.policy import Decision, Limits, Neighbour
from kvproxy.index.policies.screen import scores, screen
from kvproxy.index.verifier import Verifier


class CheckedPolicy:
    """Accepts from a probability on that one answer serves both questions.

    Args:
        verifier: gives the probability.
        level: least probability.
        floor: least cosine similarity of what is verified at all.
        guards: vetoes before the verifier is asked.
    """

    name = "checked"
    learns = False

    def __init__(self, verifier: Verifier, level: float, floor: float, guards: Sequence[Guard] = GUARDS) -> None:
        self.level = level
        self.floor = floor
        self.scorer = verifier.name
        self._verifier = verifier
        self._guards = tuple(guards)

    def decide(self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits()) -> list[Decision]:
        refused = screen(question, neighbours, max(self.floor, limits.similarity or 0.0), self._guards)
        probability = scores(question, neighbours, refused, self._verifier)
        level = max(self.level, limits.level or 0.0)
        return [
            refusal or Decision("accepted" if score >= level else "below level", score=score)
            for refusal, score in zip(refused, probability.tolist(), strict=True)
        ]

    def learn(self, observations: Observations, added: int) -> None:
        """A calibrated level learns nothing."""
