"""Ranks engines by cached prefix and load, or by consistent hashing if no engine has a cached prefix.

The unit of load and cost is the prefill of one token.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import xxhash

DECODE_TOKENS = 128  # Load of the decode phase of one request.
# Cost of each prompt token that an engine must compute, relative to each token of the engine's load; see docs/routing.md.
MISS_COST = 8.0
# Maximum load of an engine that receives a new conversation, as a multiple of its fair share of all engines' load:
# consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018).
LOAD_SLACK = 1.25


def engine_order(weights: Mapping[str, float], key: bytes) -> list[str]:
    """Return the engines by rendezvous hashing of a key. Removing an engine keeps the order of the remaining engines.

    An engine of weight 2 is the first for twice as many keys.
    """

    def distance(name: str) -> float:
        digest = xxhash.xxh3_64_intdigest(name.encode() + key)
        return -math.log((digest + 1) / 2**64) / weights[name]

    return sorted(weights, key=distance)


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
    load_cost: float = 0.0  # Time to load a part of this prefix from other media than the GPU, in tokens of prefill.


def rank_engines(candidates: Sequence[EngineCandidate], prompt_tokens: int) -> list[EngineCandidate]:
    """Return the candidates, the best first. Candidates of equal cost keep their order, which `engine_order` defines."""
    if any(candidate.matched_tokens for candidate in candidates):

        def cost(candidate: EngineCandidate) -> float:
            uncached = prompt_tokens - (candidate.matched_tokens or 0) + candidate.load_cost
            return (MISS_COST * uncached + candidate.load) / candidate.weight

    else:
        weight = sum(candidate.weight for candidate in candidates)
        share = LOAD_SLACK * (sum(candidate.load for candidate in candidates) + prompt_tokens) / weight

        def cost(candidate: EngineCandidate) -> float:
            return candidate.load > share * candidate.weight

    return sorted(candidates, key=cost)
