from collections.abc import Container, Sequence
from dataclasses import dataclass

from kvproxy.blocks.eviction import EvictionPolicy
from kvproxy.blocks.eviction.free_queues import pop_leaf, remove_child
from kvproxy.blocks.eviction.session_policy import CacheUse, SessionPolicy
from kvproxy.blocks.reuse_distance import HitCurve
from kvproxy.offline.simulate.eviction_policies import BELADY, ONLINE_POLICIES, POLICY_NAMES, Belady


@dataclass(frozen=True, slots=True)
class ChainRequest:
    """A prompt as the ids of its full blocks.

    Attributes:
        blocks: block ids. If two prompts have an id in common, their prefixes up to that block are equal.
        reusable: maximum number of leading blocks that count as hits, because at least one token is always computed.
        partial: the prompt ends in an incomplete block, which occupies a block during the request.
        use: time and client, which the eviction policy `sessions` requires; None if unknown.
    """

    blocks: Sequence[int]
    reusable: int
    partial: bool
    use: CacheUse | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a trace.

    Attributes:
        seconds: time of arrival; NaN if the trace has no times.
        tokens, output: number of prompt tokens and of response tokens.
        client: the client's name; None if unknown.
        awaits_user: the client's next request waits for a person.
    """

    seconds: float
    chain: ChainRequest
    tokens: int
    output: int
    client: str | None = None
    awaits_user: bool = False


@dataclass(frozen=True, slots=True)
class PoolSimulation:
    """Number of requested blocks, of hits among them, and of refused requests, which exceed the pool."""

    blocks: int
    hits: int
    refused: int

    @property
    def hit_rate(self) -> float:
        return self.hits / self.blocks if self.blocks else 0.0


def cached_prefix_length(blocks: Sequence[int], cached: Container[int]) -> int:
    return next((index for index, block in enumerate(blocks) if block not in cached), len(blocks))


class SimulatedPool:
    """A simulated pool that serves one request at a time. It evicts a block only if no cached block follows it.

    Args:
        capacity: size in blocks.
        policy: selects the block to evict.

    Attributes:
        stored, removed: ids of the blocks that the last request added, and of those that it evicted.
    """

    def __init__(self, capacity: int, policy: EvictionPolicy[int]) -> None:
        self._capacity = capacity
        self._policy = policy
        self._parents: dict[int, int | None] = {}
        self._num_children: dict[int, int] = {}
        self.stored: list[int] = []
        self.removed: list[int] = []

    def serve(self, request: ChainRequest) -> int | None:
        """Return the number of blocks that are hits; None if the request exceeds the pool."""
        blocks = request.blocks
        self.stored, self.removed = [], []
        if len(blocks) + request.partial > self._capacity:
            return None
        num_cached = cached_prefix_length(blocks, self._parents)
        for block in blocks[:num_cached]:
            self._policy.remove(block)
        if request.use is not None and isinstance(self._policy, SessionPolicy):
            self._policy.begin(blocks, request.use)
        while len(self._parents) + len(blocks) - num_cached + request.partial > self._capacity:
            self._evict()
        self.stored = list(blocks[num_cached:])
        for index in range(num_cached, len(blocks)):
            parent = blocks[index - 1] if index else None
            self._parents[blocks[index]] = parent
            if parent is not None:
                self._num_children[parent] = self._num_children.get(parent, 0) + 1
        for block in reversed(blocks):
            self._policy.add(block)
        return min(num_cached, request.reusable)

    def _evict(self) -> None:
        block = pop_leaf(self._policy, self._num_children)
        self.removed.append(block)
        remove_child(self._num_children, self._parents.pop(block))


def simulate(requests: Sequence[ChainRequest], capacity: int | None, policy: str) -> PoolSimulation:
    """Simulate a pool on a trace.

    Args:
        requests: the trace in order of arrival.
        capacity: size of the pool in blocks; None is unlimited.
        policy: one of `eviction_policies.POLICY_NAMES`.
    """
    if policy not in POLICY_NAMES:
        raise ValueError(f"unknown policy {policy!r}: use {', '.join(POLICY_NAMES)}")
    if capacity is not None and capacity < 1:
        raise ValueError("the capacity must be at least 1 block")
    blocks = sum(len(request.blocks) + request.partial for request in requests)
    size = capacity if capacity is not None else blocks
    if not can_have_hits(requests):
        return PoolSimulation(blocks, 0, sum(len(each.blocks) + each.partial > size for each in requests))
    cache = SimulatedPool(size, _make_belady(requests) if policy == BELADY else ONLINE_POLICIES[policy](size))
    hits = [cache.serve(request) for request in requests]
    return PoolSimulation(blocks, sum(hit or 0 for hit in hits), sum(hit is None for hit in hits))


def can_have_hits(requests: Sequence[ChainRequest]) -> bool:
    """Return whether a request can have a hit. In a trace that has only lengths, no request can."""
    return not all(isinstance(each.blocks, range) and (each.blocks.start < 0 or not each.blocks) for each in requests)


def lru_hits(requests: Sequence[ChainRequest], sizes: Sequence[int | None]) -> list[int]:
    """Return the number of hits by LRU for each pool size, as `simulate` does, but in one pass over the trace."""
    if not can_have_hits(requests):
        return [0] * len(sizes)
    curve = HitCurve()
    for request in requests:
        curve.add(request.blocks, request.reusable, request.partial)
    hits = curve.hits()
    return [
        simulate(requests, size, "lru").hits
        if size is not None and size < curve.min_blocks
        else hits[-1 if size is None else min(size, len(hits) - 1)]
        for size in sizes
    ]


def _make_belady(requests: Sequence[ChainRequest]) -> Belady:
    uses: dict[int, list[int]] = {}
    depth: dict[int, int] = {}
    for position, request in enumerate(requests):
        for index, block in enumerate(request.blocks):
            uses.setdefault(block, []).append(position)
            depth[block] = index
    return Belady(dict(uses), depth)
