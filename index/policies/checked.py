"""The policy `checked`: cosine similarity, guards, then a verifier that reads both questions together."""

from collections.abc import Sequence

import numpy as np

from kvproxy.index.models.verifier import Verifier
from kvproxy.index.policies.guards import ADDITIONS, GUARDS, Guard
from kvproxy.index.policies.policy import Decision, Limits, Neighbour, Ruling, find_rejection

_HOPELESS = 0.55
"""Share of the level. After a lower score, the verifier would accept about 0.1% of farther neighbours."""


class CheckedPolicy:
    """Serves the nearest neighbour whose probability of having the same answer reaches a level.

    Args:
        level: least probability of a hit.
        floor: least cosine of a neighbour that the verifier reads.
    """

    name = "checked"
    reach = 5

    def __init__(self, verifier: Verifier, level: float, floor: float, guards: Sequence[Guard] = GUARDS) -> None:
        self.level = level
        self.floor = floor
        self._verifier = verifier
        self._guards = (*guards, ADDITIONS) if guards else ()

    def decide(
        self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits(), namespace: str = ""
    ) -> Ruling:
        if not self._verifier.can_read(question):
            return Ruling([Decision("vetoed", "language") for _ in neighbours], None)
        floor = max(self.floor, limits.min_similarity or 0.0)
        level = max(self.level, limits.min_probability or 0.0)
        decisions = [Decision("not compared") for _ in neighbours]
        for place, neighbour in enumerate(neighbours):
            refusal = find_rejection(question, neighbour, floor, self._guards)
            if refusal is not None:
                decisions[place] = refusal
                continue
            cosine = np.array([neighbour.similarity])
            score = float(self._verifier.score([(question, neighbour.prompt)], cosine)[0])
            if score >= level:
                decisions[place] = Decision("accepted", score=score)
                return Ruling(decisions, place)
            decisions[place] = Decision("low probability", score=score)
            if score < _HOPELESS * level:
                break
        return Ruling(decisions, None)
