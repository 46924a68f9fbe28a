"""Chooses an engine by cached prefix and load, or by consistent hashing if nothing is cached.

Load and cost are counted in prefill tokens, so that they can be added.
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import xxhash

_POINTS = 160
"""Ring points of an engine of weight 1."""
DECODE_TOKENS = 128
"""Load of a decoding response in prefill tokens: it takes part in every step of the engine."""
MISS_COST = 8.0
"""Cost of a computed token relative to a token of load; docs/routing.md explains the value."""
LOAD_SLACK = 1.25
"""Load of an engine relative to its share before a key moves on along the ring: consistent hashing with bounded loads
(Mirrokni, Thorup and Zadimoghaddam, 2018).
"""


class Ring:
    """Consistent hashing ring. An engine of weight 2 receives twice the keys."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._size = len(weights)
        self._points = sorted(
            (xxhash.xxh3_64_intdigest(f"{name}#{number}".encode()), name)
            for name, weight in weights.items()
            for number in range(max(1, round(_POINTS * weight)))
        )

    def order(self, key: bytes) -> list[str]:
        """Return all engines, the key's owner first."""
        start = bisect.bisect(self._points, (xxhash.xxh3_64_intdigest(key), ""))
        found: dict[str, None] = {}
        for step in range(len(self._points)):
            found[self._points[(start + step) % len(self._points)][1]] = None
            if len(found) == self._size:
                break
        return list(found)


@dataclass(slots=True)
class Load:
    """Work in flight: tokens of prompts without a first chunk, and `DECODE_TOKENS` per request."""

    tokens: float = 0.0
    requests: int = 0

    def add(self, uncached: int) -> "RequestLoad":
        self.tokens += uncached + DECODE_TOKENS
        self.requests += 1
        return RequestLoad(self, uncached)


@dataclass(slots=True)
class RequestLoad:
    _load: Load
    _prefill: float
    _in_flight: bool = field(default=True)

    def finish_prefill(self) -> None:
        self._load.tokens -= self._prefill
        self._prefill = 0.0

    def finish(self) -> None:
        """Remove the request; safe to call more than once."""
        if self._in_flight:
            self._in_flight = False
            self.finish_prefill()
            self._load.tokens -= DECODE_TOKENS
            self._load.requests -= 1


@dataclass(frozen=True, slots=True)
class EngineCandidate:
    """An engine that can serve a request.

    Attributes:
        matched: prompt tokens in its cache; None if unknown.
        load: work in flight, in prefill tokens.
    """

    name: str
    matched: int | None
    load: float
    weight: float = 1.0


def choose(candidates: Sequence[EngineCandidate], prompt_tokens: int, order: Sequence[str]) -> list[str]:
    """Sort engines by cost, the best first; `order` decides between equal costs."""
    place = {name: index for index, name in enumerate(order)}
    if any(candidate.matched for candidate in candidates):

        def cost(candidate: EngineCandidate) -> float:
            return (MISS_COST * (prompt_tokens - (candidate.matched or 0)) + candidate.load) / candidate.weight

    else:
        weight = sum(candidate.weight for candidate in candidates)
        share = LOAD_SLACK * (sum(candidate.load for candidate in candidates) + prompt_tokens) / weight

        def cost(candidate: EngineCandidate) -> float:
            return candidate.load > share * candidate.weight

    return [each.name for each in sorted(candidates, key=lambda each: (cost(each), place[each.name]))]
