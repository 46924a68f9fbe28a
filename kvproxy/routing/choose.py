"""The choice itself: the longest prefix held, traded against load; consistent hashing where nothing is known.

Load and cost are counted in tokens of prefill, so that they can be added up: see `load`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MISS = 8.0
"""Tokens of another request's work that a token computed anew outweighs: it also takes room in a second cache, and time from
all that come after. Higher hits more and balances less; see docs/routing.md for how this was chosen."""
SLACK = 1.25
"""How much more than its share an engine may carry before a key goes to the next one on the ring: consistent hashing with
bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine that could take a request.

    Attributes:
        name: unique.
        matched: prompt tokens that it holds, None where that is not known.
        load: tokens of work it has still to do.
        weight: how fast it is, next to the others.
    """

    name: str
    matched: int | None
    load: float
    weight: float = 1.0


def choose(candidates: Sequence[Candidate], prompt_tokens: int, order: Sequence[str]) -> list[str]:
    """Names, the best engine first.

    Args:
        candidates: those that are up.
        prompt_tokens: length of the prompt; an estimate does.
        order: the ring's order for the prompt's beginning; it decides between equals, so that they stay where they were.
    """
    place = {name: index for index, name in enumerate(order)}
    if not any(candidate.matched for candidate in candidates):
        return bounded(candidates, prompt_tokens, place)

    def cost(candidate: Candidate) -> float:
        return (MISS * (prompt_tokens - (candidate.matched or 0)) + candidate.load) / candidate.weight

    return [each.name for each in sorted(candidates, key=lambda each: (cost(each), place[each.name]))]


def bounded(candidates: Sequence[Candidate], prompt_tokens: int, place: dict[str, int]) -> list[str]:
    """The ring's order, those that carry more than their share last."""
    weight = sum(candidate.weight for candidate in candidates)
    share = SLACK * (sum(candidate.load for candidate in candidates) + prompt_tokens) / weight

    def full(candidate: Candidate) -> bool:
        return candidate.load > share * candidate.weight

    return [each.name for each in sorted(candidates, key=lambda each: (full(each), place[each.name]))]
