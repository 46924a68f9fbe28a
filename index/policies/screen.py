"""Cheap refusals that every policy applies first: low similarity and guards."""

from collections.abc import Sequence

from kvproxy.index.policies.guards import Guard
from kvproxy.index.policies.policy import Decision, Neighbour


def screen(question: str, neighbour: Neighbour, floor: float, guards: Sequence[Guard]) -> Decision | None:
    """Return the refusal of a neighbour, or None if it passes.

    Args:
        floor: least cosine similarity.
    """
    if not neighbour.similarity >= floor:  # A NaN is refused, too.
        return Decision("low similarity")
    for guard in guards:
        if guard.vetoes(question, neighbour.prompt):
            return Decision("vetoed", guard.name)
    return None
