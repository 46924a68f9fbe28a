"""The policy `checked`: neighbours by cosine, guards, then a verifier that reads both questions together."""

from collections.abc import Sequence

from kvproxy.index.models.verifier import Verifier
from kvproxy.index.policies.guards import GUARDS, Guard
from kvproxy.index.policies.policy import Decision, Limits, Neighbour, Ruling, best
from kvproxy.index.policies.screen import scores, screen


class CheckedPolicy:
    """Accepts from a probability on that one answer serves both questions.

    Args:
        verifier: gives the probability.
        level: least probability.
        floor: least cosine similarity of what is verified at all.
        guards: vetoes before the verifier is asked.
    """

    name = "checked"
    reach = 5
    learns = None

    def __init__(self, verifier: Verifier, level: float, floor: float, guards: Sequence[Guard] = GUARDS) -> None:
        self.level = level
        self.floor = floor
        self._verifier = verifier
        self._guards = tuple(guards)

    def decide(
        self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits(), namespace: str = ""
    ) -> Ruling:
        if not self._verifier.reads(question):
            return Ruling([Decision("vetoed", "language") for _ in neighbours], None)
        refused = screen(question, neighbours, max(self.floor, limits.similarity or 0.0), self._guards)
        probability = scores(question, neighbours, refused, self._verifier)
        level = max(self.level, limits.level or 0.0)
        decisions = [
            refusal or Decision("accepted" if score >= level else "below level", score=score)
            for refusal, score in zip(refused, probability.tolist(), strict=True)
        ]
        return Ruling(decisions, best(decisions))
