"""The policy `checked`: guards, and the verifier's probability."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvproxy.index.models.verifier import CosineBound, Verifier
from kvproxy.index.models.verifier.multilingual import have_equal_words
from kvproxy.index.policies.guards import ADDITIONS, GUARDS, Guard
from kvproxy.index.policies.policy import Decision, Limits, Neighbour, PolicyResult, find_rejection
from kvproxy.index.policies.wording import are_equal_wordings, correct_spelling, without_courtesies

_STOP_SHARE = 0.55


class CheckedPolicy:
    """Serves the nearest neighbour that no guard vetoes and whose probability, by the verifier, is at least `level`."""

    name = "checked"
    num_neighbours = 5

    def __init__(self, verifier: Verifier, level: float, floor: float, guards: Sequence[Guard] = GUARDS) -> None:
        self.level = level
        self.floor = floor
        self._verifier = verifier
        self._guards = (*guards, ADDITIONS) if guards else ()

    def decide(
        self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits(), namespace: str = ""
    ) -> PolicyResult:
        if not self._verifier.can_read(question):
            return PolicyResult([Decision("vetoed", "language") for _ in neighbours], None)
        floor = max(self.floor, limits.least_cosine)
        level = max(self.level, limits.min_probability or 0.0)
        bound = self._verifier.least_cosine(level) if isinstance(self._verifier, CosineBound) else 0.0
        decisions = [Decision("not compared") for _ in neighbours]
        for place, neighbour in enumerate(neighbours):
            asked = correct_spelling(question, neighbour.prompt)
            stored = correct_spelling(neighbour.prompt, asked)
            refusal = find_rejection(asked, replace(neighbour, prompt=stored), floor, self._guards)
            # The last guard vetoes additions, but questions in equal wordings or words add nothing to each other.
            adds = refusal is not None and refusal.guard == ADDITIONS.name
            is_equal = adds and (are_equal_wordings(asked, stored) or have_equal_words(asked, stored))
            if refusal is not None and not is_equal:
                decisions[place] = refusal
                continue
            if neighbour.similarity < bound and not are_equal_wordings(asked, stored):
                decisions[place] = Decision("low similarity")
                break  # The verifier would hardly accept it, or farther neighbours.
            score = self.probability(asked, stored, neighbour.similarity)
            if score >= level:
                decisions[place] = Decision("accepted", score=score)
                return PolicyResult(decisions, place)
            decisions[place] = Decision("low probability", score=score)
            if score < _STOP_SHARE * level:
                break  # Farther neighbours would be rejected, too.
        return PolicyResult(decisions, None)

    def probability(self, question: str, other: str, cosine: float) -> float:
        """Return the verifier's probability that one answer fits both questions; 1 if their normal wordings are equal."""
        if are_equal_wordings(question, other):
            return 1.0
        return float(self._verifier.score([_without_own_courtesies(question, other)], np.array([cosine]))[0])


def _without_own_courtesies(question: str, other: str) -> tuple[str, str]:
    """Return two questions, without courtesies if only one has them."""
    plain, other_plain = without_courtesies(question), without_courtesies(other)
    return (plain, other_plain) if (plain == question) != (other_plain == other) else (question, other)
