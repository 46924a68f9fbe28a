"""The policy `verified`: serve only while what was observed keeps the expected error under the user's bound.

After vCache (arXiv 2502.03771), with statistics shared across entries; see docs/semantic-cache.md for guarantee and assumptions.
"""

from collections.abc import Sequence

import numpy as np

from kvproxy.index.guards import GUARDS, Guard
from kvproxy.index.observations import History, Observations
from kvproxy.index.policies.policy import Decision, Limits, Neighbour
from kvproxy.index.policies.population import Population, coordinate
from kvproxy.index.policies.screen import scores, screen
from kvproxy.index.verifier import Verifier

# Observations that the population is fitted to. Many, because what is served is seldom observed again: in a short memory
# only the entries that are never served would be left.
_RECENT = 100_000
_KEEP = 2 * _RECENT


class VerifiedPolicy:
    """Accepts where the bound on being wrong, learned per entry, is at most `max_error`.

    Args:
        verifier: gives the scores; None to learn from the cosine.
        max_error: largest expected share of wrong answers among those served.
        floor: least cosine similarity of what is considered at all.
        guards: vetoes before that.
    """

    name = "verified"
    learns = True

    def __init__(
        self, verifier: Verifier | None, max_error: float, floor: float, guards: Sequence[Guard] = GUARDS
    ) -> None:
        self.max_error = max_error
        self.floor = floor
        self.scorer = "cosine" if verifier is None else verifier.name
        self.population = Population.unknown()
        self._verifier = verifier
        self._guards = tuple(guards)
        self._since = 0
        self._fitted_to: int | None = None

    def decide(self, question: str, neighbours: Sequence[Neighbour], limits: Limits = Limits()) -> list[Decision]:
        refused = screen(question, neighbours, max(self.floor, limits.similarity or 0.0), self._guards)
        if self._verifier is None:
            found = np.array([neighbour.similarity for neighbour in neighbours])
        else:
            found = scores(question, neighbours, refused, self._verifier)
        return [
            refusal or self._decide(score, neighbour.history, limits)
            for refusal, score, neighbour in zip(refused, found.tolist(), neighbours, strict=True)
        ]

    def _decide(self, score: float, history: History, limits: Limits) -> Decision:
        if self._verifier is not None and score < (limits.level or 0.0):
            return Decision("below level", score=score)
        error = self.error_bound(score, history)
        allowed = self.max_error if limits.max_error is None else min(self.max_error, limits.max_error)
        return Decision("accepted" if error <= allowed else "uncertain", score=score, error=error)

    def error_bound(self, score: float, history: History) -> float:
        """The bound on being wrong at a score, for an entry with a history."""
        seen = coordinate(np.array(history.scores), self.scorer)
        z = float(coordinate(score, self.scorer))
        return self.population.error_bound(z, seen, np.array(history.rights))

    def learn(self, observations: Observations, added: int) -> None:
        """Fit what the entries share, once a tenth more was observed; an entry's own history counts at once."""
        self._since += added
        if self._fitted_to is not None and self._since < max(20, self._fitted_to // 10):
            return
        recent = observations.recent(self.scorer, _RECENT)
        entries = [entry for entry, _, _ in recent]
        z = coordinate(np.array([score for _, score, _ in recent]), self.scorer)
        self.population = self.population.fitted(z, np.array([right for _, _, right in recent]), entries)
        self._fitted_to, self._since = len(recent), 0
        observations.prune(_KEEP)
