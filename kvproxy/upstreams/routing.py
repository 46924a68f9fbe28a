"""The choice itself: the longest prefix held, traded against load; consistent hashing where nothing is known.

Load and cost are counted in tokens of prefill, so that they can be added up: see `load`.
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import xxhash

_POINTS = 160
"""Points of an engine of weight 1; more make shares more even."""


class Ring:
    """Engines on a circle.

    Args:
        weights: by name; an engine of weight 2 gets twice the keys.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._size = len(weights)
        self._points = sorted(
            (xxhash.xxh3_64_intdigest(f"{name}#{number}".encode()), name)
            for name, weight in weights.items()
            for number in range(max(1, round(_POINTS * weight)))
        )

    def order(self, key: bytes) -> list[str]:
        """All engines, the one that owns the key first, then those that take over without it."""
        start = bisect.bisect(self._points, (xxhash.xxh3_64_intdigest(key), ""))
        found: dict[str, None] = {}
        for step in range(len(self._points)):
            found[self._points[(start + step) % len(self._points)][1]] = None
            if len(found) == self._size:
                break
        return list(found)


DECODE = 128
"""Tokens of prefill that an answer under way counts for: it shares every step until it ends."""


@dataclass(slots=True)
class Load:
    """One engine's load, in tokens."""

    tokens: float = 0.0
    requests: int = 0

    def add(self, uncached: int) -> "Ticket":
        """A request with so many tokens to compute went there."""
        self.tokens += uncached + DECODE
        self.requests += 1
        return Ticket(self, uncached)


@dataclass(slots=True)
class Ticket:
    """One request's part of a load."""

    _load: Load
    _prefill: float
    _open: bool = field(default=True)

    def begun(self) -> None:
        """Its answer has begun, so its prompt is computed."""
        self._load.tokens -= self._prefill
        self._prefill = 0.0

    def ended(self) -> None:
        """It is over; calling again does nothing."""
        if self._open:
            self._open = False
            self.begun()
            self._load.tokens -= DECODE
            self._load.requests -= 1


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
