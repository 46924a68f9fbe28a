"""Simulates routing policies on a trace: cache hits, balance between the engines, and waiting times.

An engine loads and computes one prompt at a time at fixed rates, and generates any number of responses concurrently, each at
a fixed rate. The routing policies are the proxy's own (`kvproxy.upstreams.routing`).
"""

import functools
import heapq
import itertools
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvproxy.analyse.simulate.pool_cost import EngineTier
from kvproxy.analyse.simulate.pool_simulation import (
    ChainRequest,
    SimulatedPool,
    TraceRequest,
    cached_prefix_length,
)
from kvproxy.blocks.eviction import LRU
from kvproxy.upstreams.routing import EngineCandidate, EngineLoad, RequestLoad, engine_order, rank_engines

SECONDS_PER_OUTPUT_TOKEN = 0.02
MAX_ENGINES = 256
_NUM_HASHED_BLOCKS = 2


@dataclass(frozen=True, slots=True)
class FleetShape:
    """A fleet of equal engines.

    Attributes:
        engines, blocks: number of engines, and size of each engine's pool in blocks.
        prefill_rate: prompt tokens that an engine computes per second.
        tiers: each engine's tiers, the fastest and smallest first.
        event_delay: seconds until the router receives the KV events of a request.
        event_loss: fraction of the requests whose KV events are lost.
    """

    engines: int
    blocks: int
    block_tokens: int
    prefill_rate: float
    event_delay: float = 0.0
    event_loss: float = 0.0
    tiers: tuple[EngineTier, ...] = ()


@dataclass(frozen=True, slots=True)
class RoutingResult:
    """The result of a routing policy on a trace.

    Attributes:
        hit_tokens, hit_rate: number and share of the prompt tokens that were cached in the chosen engine.
        loaded_tokens: number of these tokens that the engine loaded from its tiers.
        imbalance: computed tokens of the busiest engine, divided by the mean of all engines.
        wait_mean, wait_p50, wait_p99: mean and percentiles of the seconds from arrival to the end of prefill.
        refused: number of requests whose prompt is longer than the pool.
    """

    policy: str
    engines: int
    hit_tokens: int
    hit_rate: float
    loaded_tokens: int
    imbalance: float
    wait_mean: float
    wait_p50: float
    wait_p99: float
    refused: int


class _PublishedBlocks:
    """A pool's blocks, as the router knows them from the KV events that it has received."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()
        self._pending: deque[tuple[float, list[int], list[int]]] = deque()

    def publish(self, seconds: float, pool: SimulatedPool) -> None:
        self._pending.append((seconds, pool.stored, pool.removed))

    def prefix_length(self, chain: ChainRequest, now: float) -> int:
        while self._pending and self._pending[0][0] <= now:
            _, stored, removed = self._pending.popleft()
            self._blocks.difference_update(removed)
            self._blocks.update(stored)
        return min(cached_prefix_length(chain.blocks, self._blocks), chain.reusable)


class SimulatedEngine:
    def __init__(self, name: str, shape: FleetShape) -> None:
        self.name = name
        self.load = EngineLoad()
        self.hit_tokens = self.loaded = self.computed = self.refused = 0
        self.waits: list[float] = []
        sizes = (shape.blocks, *(tier.blocks for tier in shape.tiers))
        self._pools = [(SimulatedPool(size, LRU(size)), _PublishedBlocks()) for size in sizes]
        self._losses = random.Random(name)
        self._shape = shape
        self._queue: deque[tuple[TraceRequest, RequestLoad]] = deque()
        self._free_at = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._event_ids = itertools.count()

    def candidate(self, arrival: TraceRequest, *, tiers: bool) -> EngineCandidate:
        """Return this engine with the prompt's cached prefix, as the router knows it: on the GPU, or also in `tiers`."""
        lengths = [published.prefix_length(arrival.chain, arrival.seconds) for _, published in self._pools]
        on_gpu, loads = self._split(lengths if tiers else lengths[:1])
        seconds = sum(blocks * self._shape.block_tokens / tier.load_rate for tier, blocks in loads)
        matched = (on_gpu + sum(blocks for _, blocks in loads)) * self._shape.block_tokens
        return EngineCandidate(self.name, matched, self.load.tokens, load_cost=seconds * self._shape.prefill_rate)

    def _split(self, lengths: Sequence[int]) -> tuple[int, list[tuple[EngineTier, int]]]:
        """Return the blocks of a prefix on the GPU, and those that each tier adds, by the prefix's length in each pool."""
        reached, loads = lengths[0], list[tuple[EngineTier, int]]()
        for tier, length in zip(self._shape.tiers, lengths[1:], strict=False):
            if length > reached:
                loads.append((tier, length - reached))
                reached = length
        return lengths[0], loads

    def add(self, arrival: TraceRequest, matched_tokens: int) -> None:
        self._queue.append((arrival, self.load.add_request(arrival.tokens - matched_tokens)))

    def advance(self, now: float) -> None:
        """Simulate until the time `now` in seconds: start queued requests, and end prefills and responses."""
        while self._queue and max(self._free_at, self._queue[0][0].seconds) <= now:
            self._start(*self._queue.popleft())
        while self._events and self._events[0][0] <= now:
            heapq.heappop(self._events)[2]()

    def _start(self, arrival: TraceRequest, load: RequestLoad) -> None:
        start = max(self._free_at, arrival.seconds)
        hits = [pool.serve(arrival.chain) for pool, _ in self._pools]
        if self._losses.random() >= self._shape.event_loss:
            for pool, published in self._pools:
                published.publish(start + self._shape.event_delay, pool)
        if hits[0] is None:
            self.refused += 1
            load.finish()
            return
        _, loads = self._split([hit or 0 for hit in hits])
        size = self._shape.block_tokens
        loaded = sum(blocks for _, blocks in loads) * size
        tokens = arrival.tokens - hits[0] * size - loaded
        self.hit_tokens += arrival.tokens - tokens
        self.loaded += loaded
        self.computed += tokens
        load_seconds = sum(blocks * size / tier.load_rate for tier, blocks in loads)
        self._free_at = start + load_seconds + tokens / self._shape.prefill_rate
        self.waits.append(self._free_at - arrival.seconds)
        end = self._free_at + arrival.output * SECONDS_PER_OUTPUT_TOKEN
        for seconds, callback in ((self._free_at, load.finish_prefill), (end, load.finish)):
            heapq.heappush(self._events, (seconds, next(self._event_ids), callback))


# The proxy uses `prefix by tier and load` with KV events, and otherwise `with bounded loads`.
POLICIES = ("round-robin", "random", "consistent hashing", "with bounded loads", "prefix and load")
TIER_POLICY = "prefix by tier and load"


def _make_router(policy: str, engines: Sequence[SimulatedEngine]) -> Callable[[TraceRequest], SimulatedEngine]:
    weights = {engine.name: 1.0 for engine in engines}
    turns, generator = itertools.cycle(engines), random.Random(0)

    def affinity_order(arrival: TraceRequest) -> list[SimulatedEngine]:
        order = engine_order(weights, repr(arrival.chain.blocks[:_NUM_HASHED_BLOCKS]).encode())
        return [engines[int(name)] for name in order]

    def choose_engine(arrival: TraceRequest, *, tiers: bool | None) -> SimulatedEngine:
        """Choose an engine by its load, and by its prefixes on the GPU, or also in `tiers`; None: without KV events."""
        candidates = [
            EngineCandidate(engine.name, None, engine.load.tokens)
            if tiers is None
            else engine.candidate(arrival, tiers=tiers)
            for engine in affinity_order(arrival)
        ]
        return engines[int(rank_engines(candidates, arrival.tokens)[0].name)]

    routes: dict[str, Callable[[TraceRequest], SimulatedEngine]] = {
        "round-robin": lambda arrival: next(turns),
        "random": lambda arrival: generator.choice(engines),
        "consistent hashing": lambda arrival: affinity_order(arrival)[0],
        "with bounded loads": lambda arrival: choose_engine(arrival, tiers=None),
        "prefix and load": lambda arrival: choose_engine(arrival, tiers=False),
        TIER_POLICY: lambda arrival: choose_engine(arrival, tiers=True),
    }
    return routes[policy]


def simulate_routing(arrivals: Sequence[TraceRequest], shape: FleetShape, policy: str) -> RoutingResult:
    """Simulate a trace with one of `POLICIES`, or with `TIER_POLICY`. The arrivals must be in order of time."""
    engines = [SimulatedEngine(str(number), shape) for number in range(shape.engines)]
    route = _make_router(policy, engines)
    for arrival in arrivals:
        for engine in engines:
            engine.advance(arrival.seconds)
        engine = route(arrival)
        engine.add(arrival, engine.candidate(arrival, tiers=policy == TIER_POLICY).matched_tokens or 0)
    for engine in engines:
        engine.advance(float("inf"))
    hits, computed = sum(engine.hit_tokens for engine in engines), [engine.computed for engine in engines]
    waits = sorted(wait for engine in engines for wait in engine.waits) or [0.0]
    total = hits + sum(computed)
    return RoutingResult(
        policy,
        shape.engines,
        hits,
        hits / total if total else 0.0,
        sum(engine.loaded for engine in engines),
        max(computed) * len(computed) / sum(computed) if sum(computed) else 1.0,
        sum(waits) / len(waits),
        waits[len(waits) // 2],
        waits[min(len(waits) - 1, int(len(waits) * 0.99))],
        sum(engine.refused for engine in engines),
    )


def smallest_fleet(
    arrivals: Sequence[TraceRequest], shape: FleetShape, policy: str, seconds: float
) -> RoutingResult | None:
    """Return the result of the smallest fleet whose `wait_p99` is at most `seconds`; None if `MAX_ENGINES` are too few."""

    @functools.cache
    def result(engines: int) -> RoutingResult:
        return simulate_routing(arrivals, replace(shape, engines=engines), policy)

    most = 1
    while result(most).wait_p99 > seconds:
        if most == MAX_ENGINES:
            return None
        most *= 2
    sizes = range(most // 2 + 1, most + 1)
    return result(sizes[bisect_left(sizes, True, key=lambda engines: result(engines).wait_p99 <= seconds)])
