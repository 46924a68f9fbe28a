"""Ranks engines by cached prefix and load, or by consistent hashing if no engine has a cached prefix.

The unit of load and cost is the prefill of one token.
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import xxhash

_POINTS_PER_WEIGHT = 160
DECODE_TOKENS = 128  # Load of the decode phase of one request.
# Cost of each prompt token that an engine must compute, relative to each token of the engine's load; see docs/routing.md.
MISS_COST = 8.0
# Maximum load of an engine that receives a new conversation, as a multiple of its fair share of all engines' load:
# consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018).
LOAD_SLACK = 1.25


class HashRing:
    """Consistent hashing ring of engines. An engine of weight 2 receives twice as many keys."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._size = len(weights)
        self._points = sorted(
            (xxhash.xxh3_64_intdigest(f"{name}#{number}".encode()), name)
            for name, weight in weights.items()
            for number in range(max(1, round(_POINTS_PER_WEIGHT * weight)))
        )

    def engine_order(self, key: bytes) -> list[str]:
        """Return all engines in the order in which they follow the key on the ring."""
        start = bisect.bisect(self._points, (xxhash.xxh3_64_intdigest(key), ""))
        found: dict[str, None] = {}
        for step in range(len(self._points)):
            found[self._points[(start + step) % len(self._points)][1]] = None
            if len(found) == self._size:
                break
        return list(found)


@dataclass(slots=True)
class EngineLoad:
    """Load of one engine: per request in flight `DECODE_TOKENS`, and before its first chunk also its uncached tokens."""

    tokens: float = 0.0
    requests: int = 0

    def add_request(self, uncached_tokens: int) -> "RequestLoad":
        self.tokens += uncached_tokens + DECODE_TOKENS
        self.requests += 1
        return RequestLoad(self, uncached_tokens)


@dataclass(slots=True)
class RequestLoad:
    _load: EngineLoad
    _prefill_tokens: float
    _in_flight: bool = field(default=True)

    def finish_prefill(self) -> None:
        self._load.tokens -= self._prefill_tokens
        self._prefill_tokens = 0.0

    def finish(self) -> None:
        if self._in_flight:
            self._in_flight = False
            self.finish_prefill()
            self._load.tokens -= DECODE_TOKENS
            self._load.requests -= 1


@dataclass(frozen=True, slots=True)
class EngineCandidate:
    name: str
    matched_tokens: int | None  # Length of the cached prefix; None if unknown.
    load: float  # See `EngineLoad.tokens`.
    weight: float = 1.0


def rank_engines(candidates: Sequence[EngineCandidate], prompt_tokens: int, ring_order: Sequence[str]) -> list[str]:
    """Return the names of the engines, the best first. At equal cost, `ring_order` (from `HashRing.engine_order`) decides."""
    place = {name: index for index, name in enumerate(ring_order)}
    if any(candidate.matched_tokens for candidate in candidates):

        def cost(candidate: EngineCandidate) -> float:
            uncached = prompt_tokens - (candidate.matched_tokens or 0)
            return (MISS_COST * uncached + candidate.load) / candidate.weight

    else:
        weight = sum(candidate.weight for candidate in candidates)
        share = LOAD_SLACK * (sum(candidate.load for candidate in candidates) + prompt_tokens) / weight

        def cost(candidate: EngineCandidate) -> float:
            return candidate.load > share * candidate.weight

    return [each.name for each in sorted(candidates, key=lambda each: (cost(each), place[each.name]))]
