"""What every policy asks first, and cheaply: is the neighbour close enough, and does no guard veto."""

from collections.abc import Sequence

import numpy as np

from kvproxy.index.models.verifier import Verifier
from kvproxy.index.policies.guards import Guard
from kvproxy.index.policies.policy import Decision, Neighbour


def screen(
    question: str, neighbours: Sequence[Neighbour], floor: float, guards: Sequence[Guard]
) -> list[Decision | None]:
    """For each neighbour the refusal, or None where nothing speaks against it.

    Args:
        floor: least cosine similarity.
        guards: vetoes; the first that speaks is named.
    """
    return [_refusal(question, neighbour, floor, guards) for neighbour in neighbours]


def _refusal(question: str, neighbour: Neighbour, floor: float, guards: Sequence[Guard]) -> Decision | None:
    if not neighbour.similarity >= floor:  # So that what is no number is refused too.
        return Decision("below threshold")
    for guard in guards:
        if guard.vetoes(question, neighbour.prompt):
            return Decision("vetoed", guard.name)
    return None


def scores(
    question: str, neighbours: Sequence[Neighbour], refused: Sequence[Decision | None], verifier: Verifier
) -> np.ndarray:
    """The verifier's probability of each neighbour that was not refused, in one call; NaN for the refused ones."""
    left = [place for place, refusal in enumerate(refused) if refusal is None]
    found = np.full(len(neighbours), np.nan, dtype=np.float32)
    if left:
        pairs = [(question, neighbours[place].prompt) for place in left]
        found[left] = verifier.score(pairs, np.array([neighbours[place].similarity for place in left]))
    return found
