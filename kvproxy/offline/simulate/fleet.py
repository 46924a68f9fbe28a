"""A trace routed between several engines: what each way of routing hits, how evenly it spreads work, and who waits.

An engine computes one prompt after another at a fixed rate, and looks its cache up when it begins one; answers then run
beside each other and take a fixed time a token. The routing is the proxy's own code (`kvproxy.upstreams.routing`).
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvproxy.offline.simulate.chains import ChainCache, ChainRequest
from kvproxy.offline.simulate.eviction_policies import LRU
from kvproxy.upstreams.routing import Candidate, Load, RequestLoad, Ring, choose

SECONDS_PER_OUTPUT_TOKEN = 0.02


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a trace.

    Attributes:
        seconds: when it came.
        chain: its prompt as blocks.
        tokens: length of its prompt.
        output: tokens of its answer.
    """

    seconds: float
    chain: ChainRequest
    tokens: int
    output: int


@dataclass(frozen=True, slots=True)
class FleetShape:
    """Engines that are all alike: how many, the blocks of each one's pool, tokens of a block, prompt tokens a second."""

    engines: int
    blocks: int
    block_tokens: int
    prefill_rate: float


@dataclass(frozen=True, slots=True)
class Routed:
    """What came of a way of routing.

    Attributes:
        policy: its name.
        hit_tokens, hit_rate: prompt tokens found in the engine that got the request, and their share of all.
        imbalance: tokens computed by the busiest engine over the mean.
        wait_p50, wait_p99: seconds from arrival to the end of prefill.
        refused: requests that fit no pool.
    """

    policy: str
    hit_tokens: int
    hit_rate: float
    imbalance: float
    wait_p50: float
    wait_p99: float
    refused: int


class _Engine:
    """One engine: its cache, its queue and its clock."""

    def __init__(self, name: str, shape: FleetShape) -> None:
        self.name = name
        self.cache = ChainCache(shape.blocks, LRU(shape.blocks))
        self.load = Load()
        self.hits = self.computed = self.refused = 0
        self.waits: list[float] = []
        self._shape = shape
        self._queue: deque[tuple[Arrival, RequestLoad]] = deque()
        self._free_at = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def matched(self, arrival: Arrival) -> int:
        """Tokens of a prompt that it holds now, as its events would tell."""
        chain = arrival.chain
        return min(self.cache.num_cached(chain.blocks), chain.reusable) * self._shape.block_tokens

    def add(self, arrival: Arrival) -> None:
        self._queue.append((arrival, self.load.add(arrival.tokens - self.matched(arrival))))

    def advance(self, now: float) -> None:
        """Do what is due until a moment."""
        while self._queue and max(self._free_at, self._queue[0][0].seconds) <= now:
            self._begin(*self._queue.popleft())
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()

    def _begin(self, arrival: Arrival, load: RequestLoad) -> None:
        hit = self.cache.serve(arrival.chain)
        if hit is None:
            self.refused += 1
            load.finish()
            return
        tokens = arrival.tokens - hit * self._shape.block_tokens
        self.hits += arrival.tokens - tokens
        self.computed += tokens
        self._free_at = max(self._free_at, arrival.seconds) + tokens / self._shape.prefill_rate
        self.waits.append(self._free_at - arrival.seconds)
        end = self._free_at + arrival.output * SECONDS_PER_OUTPUT_TOKEN
        for moment, do in ((self._free_at, load.finish_prefill), (end, load.finish)):
            heapq.heappush(self._due, (moment, next(self._numbers), do))


Route = Callable[[Sequence[_Engine], Arrival], _Engine]


def _round_robin() -> Route:
    turn = itertools.count()
    return lambda engines, arrival: engines[next(turn) % len(engines)]


def _random() -> Route:
    generator = random.Random(0)
    return lambda engines, arrival: generator.choice(engines)


def _hashing() -> Route:
    rings: dict[int, Ring] = {}

    def route(engines: Sequence[_Engine], arrival: Arrival) -> _Engine:
        return engines[int(_order(rings, engines, arrival)[0])]

    return route


def _chosen(*, events: bool) -> Route:
    rings: dict[int, Ring] = {}

    def route(engines: Sequence[_Engine], arrival: Arrival) -> _Engine:
        candidates = [
            Candidate(engine.name, engine.matched(arrival) if events else None, engine.load.tokens)
            for engine in engines
        ]
        return engines[int(choose(candidates, arrival.tokens, _order(rings, engines, arrival))[0])]

    return route


_FIRST = 2
"""Blocks that consistent hashing looks at."""


def _order(rings: dict[int, Ring], engines: Sequence[_Engine], arrival: Arrival) -> list[str]:
    ring = rings.setdefault(len(engines), Ring({engine.name: 1.0 for engine in engines}))
    return ring.order(repr(arrival.chain.blocks[:_FIRST]).encode())


POLICIES: dict[str, Callable[[], Route]] = {
    "round-robin": _round_robin,
    "random": _random,
    "consistent hashing": _hashing,
    "with bounded loads": lambda: _chosen(events=False),
    "prefix and load": lambda: _chosen(events=True),
}
"""The last two are what the proxy does, without events and with them."""


def simulate_routing(arrivals: Sequence[Arrival], shape: FleetShape, policy: str) -> Routed:
    """Route a whole trace.

    Args:
        arrivals: in order of time.
        shape: the engines.
        policy: a name in `POLICIES`.
    """
    engines = [_Engine(str(number), shape) for number in range(shape.engines)]
    route = POLICIES[policy]()
    for arrival in arrivals:
        for engine in engines:
            engine.advance(arrival.seconds)
        route(engines, arrival).add(arrival)
    for engine in engines:
        engine.advance(float("inf"))
    hits, computed = sum(engine.hits for engine in engines), [engine.computed for engine in engines]
    waits = sorted(wait for engine in engines for wait in engine.waits) or [0.0]
    total = hits + sum(computed)
    return Routed(
        policy,
        hits,
        hits / total if total else 0.0,
        max(computed) * len(computed) / sum(computed) if sum(computed) else 1.0,
        waits[len(waits) // 2],
        waits[min(len(waits) - 1, int(len(waits) * 0.99))],
        sum(engine.refused for engine in engines),
    )
