"""Simulates a block pool with an eviction policy, or with the optimal order of eviction, on a trace."""

import heapq
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvproxy.blocks.eviction import EvictionPolicy
from kvproxy.blocks.eviction.free_queues import pop_leaf, remove_child
from kvproxy.blocks.eviction.session_policy import CacheUse, SessionPolicy
from kvproxy.blocks.reuse_distance import HitCurve
from kvproxy.doors import EVICTION


@dataclass(frozen=True, slots=True)
class ChainRequest:
    """A prompt as the ids of its full blocks.

    Attributes:
        blocks: block ids. If two prompts have an id in common, their prefixes up to that block are equal.
        reusable: maximum number of leading blocks that count as hits, because at least one token is always computed.
        partial: the prompt ends in an incomplete block, which occupies a block during the request.
        use: time and client of the request, for the eviction policy `sessions`; None if unknown.
        least: fewer leading blocks than these count as no hit.
    """

    blocks: Sequence[int]
    reusable: int
    partial: bool
    use: CacheUse | None = None
    least: int = 0

    @property
    def size(self) -> int:
        """The number of blocks that the request occupies."""
        return len(self.blocks) + self.partial


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request of a trace.

    Attributes:
        seconds: time of arrival; NaN if the trace has no times.
        tokens, output: number of prompt tokens and of response tokens.
        client: the client's name; None if unknown.
        session: number of the conversation; None if unknown.
        awaits_user: the client's next request waits for a person.
    """

    seconds: float
    chain: ChainRequest
    tokens: int
    output: int
    client: str | None = None
    awaits_user: bool = False
    session: int | None = None


@dataclass(frozen=True, slots=True)
class PoolSimulation:
    """Number of requested blocks, of hits among them, and of refused requests, which need more blocks than the pool has."""

    blocks: int
    hits: int
    refused: int

    @property
    def hit_rate(self) -> float:
        return self.hits / self.blocks if self.blocks else 0.0


class Belady:
    """The optimal order: evict the block whose next hit is the latest; of several, the block that is last in its prompt.

    `requests` are those that the pool serves. No policy has more hits, because this one may also evict a block before the
    blocks that follow it, if a request computes it again before their next use.
    """

    def __init__(self, requests: Sequence[ChainRequest]) -> None:
        self._uses: dict[int, list[float]] = {}
        self._depth: dict[int, int] = {}
        for position, request in enumerate(requests):
            for index, block in enumerate(request.blocks):
                # A use that cannot be a hit computes the block again, so it is no reason to keep the block.
                use = position if index < request.reusable else float("inf")
                self._uses.setdefault(block, []).append(use)
                self._depth[block] = index
        self._num_uses: dict[int, int] = {}
        self._heap: list[tuple[float, int, int]] = []
        self._idle: dict[int, tuple[float, int, int]] = {}

    def add(self, key: int) -> None:
        following = self._num_uses[key] = self._num_uses.get(key, 0) + 1
        uses = self._uses[key]
        next_use = uses[following] if following < len(uses) else float("inf")
        entry = self._idle[key] = (-next_use, -self._depth[key], key)
        heapq.heappush(self._heap, entry)

    def remove(self, key: int) -> None:
        del self._idle[key]

    def pop(self) -> int:
        while self._heap:
            entry = heapq.heappop(self._heap)
            if self._idle.get(entry[2]) is entry:
                del self._idle[entry[2]]
                return entry[2]
        raise LookupError

    def restore(self, key: int) -> None:
        entry = self._idle[key] = (float("-inf"), 0, key)
        heapq.heappush(self._heap, entry)


BELADY = "belady"


def policy_names() -> tuple[str, ...]:
    return (*EVICTION.names(), BELADY)


def cached_prefix_length(blocks: Sequence[int], cached: Container[int]) -> int:
    return next((index for index, block in enumerate(blocks) if block not in cached), len(blocks))


class SimulatedPool:
    """A simulated pool that serves one request at a time. It evicts a block only if no cached block follows it (see `Belady`).

    Attributes:
        stored, removed: ids of the blocks that the last request added, and of those that it evicted.
    """

    def __init__(self, capacity: int, policy: EvictionPolicy[int]) -> None:
        self._capacity = capacity
        self._policy = policy
        self._parents: dict[int, int | None] = {}
        self._num_children: dict[int, int] = {}
        self._kept: Mapping[int, int] = {} if isinstance(policy, Belady) else self._num_children
        self.stored: list[int] = []
        self.removed: list[int] = []

    def serve(self, request: ChainRequest) -> int | None:
        """Return the number of blocks that are hits; None if the request needs more blocks than the pool has."""
        blocks = request.blocks
        self.stored, self.removed = [], []
        if request.size > self._capacity:
            return None
        num_cached = cached_prefix_length(blocks, self._parents)
        for block in blocks[:num_cached]:
            self._policy.remove(block)
        if request.use is not None and isinstance(self._policy, SessionPolicy):
            self._policy.begin(blocks, request.use)
        while len(self._parents) + len(blocks) - num_cached + request.partial > self._capacity:
            evicted = pop_leaf(self._policy, self._kept)
            remove_child(self._num_children, self._parents.pop(evicted))
            self.removed.append(evicted)
        self.stored = list(blocks[num_cached:])
        for index in range(num_cached, len(blocks)):
            parent = self._parents[blocks[index]] = blocks[index - 1] if index else None
            if parent is not None:
                self._num_children[parent] = self._num_children.get(parent, 0) + 1
        for block in reversed(blocks):
            self._policy.add(block)
        hits = min(num_cached, request.reusable)
        return hits if hits >= request.least else 0


def simulate(requests: Iterable[ChainRequest], capacity: int | None, policy: str) -> PoolSimulation:
    """Simulate a pool on a trace. Raises TypeError or ValueError for invalid arguments, see `check_trace`.

    Args:
        requests: the trace in order of arrival.
        capacity: size of the pool in blocks; None is unlimited.
        policy: a name of `EVICTION`, or `belady`, the upper bound: the most hits of any order of eviction. Without
            `ChainRequest.use`, `sessions` is LRU.
    """
    trace = list(requests)
    check_trace(trace)
    check_policy(policy)
    if capacity is not None:
        check_count("the capacity", capacity, "block")
    return replay(trace, capacity, policy)


def replay(requests: Sequence[ChainRequest], capacity: int | None, policy: str) -> PoolSimulation:
    """Do the same as `simulate`, with valid arguments."""
    blocks = sum(request.size for request in requests)
    size = capacity if capacity is not None else blocks
    cache = SimulatedPool(size, _optimal(requests, size) if policy == BELADY else EVICTION.create(policy, size))
    hits = [cache.serve(request) for request in requests]
    return PoolSimulation(blocks, sum(hit or 0 for hit in hits), sum(hit is None for hit in hits))


def check_policy(policy: str) -> None:
    if policy not in policy_names():
        raise ValueError(f"unknown policy {policy!r}: use {', '.join(policy_names())}")


def check_count(name: str, value: int, unit: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1 {unit}, but it is {value}")


def check_trace(requests: Sequence[ChainRequest]) -> None:
    """Raise a TypeError or ValueError if equal ids do not have equal prefixes, or if `reusable` is no number of blocks."""
    previous: dict[int, int | None] = {}
    for number, request in enumerate(requests):
        if not isinstance(request, ChainRequest):
            raise TypeError(f"requests[{number}] must be a ChainRequest, not {type(request).__name__}")
        if not 0 <= request.reusable <= len(request.blocks):
            raise ValueError(
                f"requests[{number}].reusable must be from 0 to {len(request.blocks)}, the number of its blocks, but it is"
                f" {request.reusable}"
            )
        before: int | None = None
        for block in request.blocks:
            if previous.setdefault(block, before) != before:
                raise ValueError(
                    f"requests[{number}]: block {block} {_place(before)} here, but {_place(previous[block])} before: an id"
                    " stands for the whole prefix up to its block"
                )
            before = block


def _place(previous: int | None) -> str:
    return "begins the prompt" if previous is None else f"follows block {previous}"


def _optimal(requests: Sequence[ChainRequest], capacity: int) -> Belady:
    return Belady([request for request in requests if request.size <= capacity])


def lru_hits(requests: Sequence[ChainRequest], sizes: Sequence[int | None]) -> list[int]:
    """Return the number of hits with LRU for each pool size in blocks; None is unlimited."""
    curve = HitCurve()
    for request in requests:
        curve.add(request.blocks, request.reusable, request.partial, request.least)
    hits = curve.hits_by_pool_size()
    return [
        replay(requests, size, "lru").hits
        if size is not None and size < curve.min_blocks
        else hits[-1 if size is None else min(size, len(hits) - 1)]
        for size in sizes
    ]
