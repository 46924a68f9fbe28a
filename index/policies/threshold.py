"""The policy `threshold`: the cosine, and guards."""

from collections.abc import Sequence

from kvproxy.index.policies.guards import GUARDS, Guard
from kvproxy.index.policies.policy import Decision, Limits, Neighbour, PolicyResult, find_rejection


class ThresholdPolicy:
    """Serves the nearest neighbour if its cosine reaches the threshold and no guard vetoes it."""

    name = "threshold"
    num_neighbours = 5

    def __init__(self, threshold: float, guards: Sequence[Guard] = GUARDS) -> None:
        self.floor = threshold
        self._guards = tuple(guards)

    def decide(
        self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits(), namespace: str = ""
    ) -> PolicyResult:
        floor = max(self.floor, limits.least_cosine)
        decisions = [
            find_rejection(question, neighbour, floor, self._guards) or Decision("accepted", score=neighbour.similarity)
            for neighbour in neighbours
        ]
        accepted = (place for place, decision in enumerate(decisions) if decision.verdict == "accepted")
        return PolicyResult(decisions, next(accepted, None))
