"""Accepts or refuses a neighbour of a question."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from index.guards import GUARDS, Guard

Verdict = Literal["accepted", "below threshold", "vetoed", "expired"]


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict, and the name of the guard that vetoed."""

    verdict: Verdict
    guard: str | None = None


class ThresholdPolicy:
    """Accepts from a cosine similarity on, unless a guard vetoes.

    Args:
        threshold: least similarity.
        guards: vetoes; the first that speaks is named.
    """

    def __init__(self, threshold: float, guards: Sequence[Guard] = GUARDS) -> None:
        self.threshold = threshold
        self._guards = tuple(guards)

    def decide(self, question: str, cached: str, similarity: float, threshold: float | None = None) -> Decision:
        """Whether the answer to `cached` may serve `question`; a threshold given here can only be stricter."""
        if similarity < max(self.threshold, threshold or 0.0):
            return Decision("below threshold")
        for guard in self._guards:
            if guard.vetoes(question, cached):
                return Decision("vetoed", guard.name)
        return Decision("accepted")
