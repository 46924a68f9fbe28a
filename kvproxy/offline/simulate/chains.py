"""A cache of chains of blocks, block ids being plain integers: what one pool size and one order of eviction would hit."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvproxy.blocks.policies import Order
from kvproxy.offline.simulate.orders import BELADY, ORDERS, Belady


@dataclass(frozen=True, slots=True)
class ChainRequest:
    """A prompt as the ids of its full blocks.

    Attributes:
        blocks: ids, first block first; equal ids have equal beginnings.
        reusable: how many of them may be hit, since one token at least is computed.
        partial: whether the prompt ends in a block that is not full: it takes room for as long as the request, and is not
            cached.
    """

    blocks: tuple[int, ...]
    reusable: int
    partial: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """Blocks asked for and found, and requests that did not fit the pool at all."""

    blocks: int
    hits: int
    refused: int

    @property
    def hit_rate(self) -> float:
        return self.hits / self.blocks if self.blocks else 0.0


class ChainCache:
    """One request at a time: hits are taken out of the order, the rest is allocated, and all are freed tail first.

    A block whose child is cached is never given up before it: the child could not be reached any more.

    Args:
        capacity: blocks that can be held.
        order: which idle block is given up.
    """

    def __init__(self, capacity: int, order: Order[int]) -> None:
        self._capacity = capacity
        self._order = order
        self._parents: dict[int, int | None] = {}
        self._children: dict[int, int] = {}

    def known(self, blocks: Sequence[int]) -> int:
        """Leading blocks that are held; changes nothing."""
        return next((place for place, block in enumerate(blocks) if block not in self._parents), len(blocks))

    def request(self, request: ChainRequest) -> int | None:
        """Blocks hit, or None when the request does not fit."""
        blocks = request.blocks
        if len(blocks) + request.partial > self._capacity:
            return None
        held = self._parents
        known = self.known(blocks)
        for block in blocks[:known]:
            self._order.remove(block)
        while len(held) + len(blocks) - known + request.partial > self._capacity:
            self._evict()
        for index in range(known, len(blocks)):
            parent = blocks[index - 1] if index else None
            held[blocks[index]] = parent
            if parent is not None:
                self._children[parent] = self._children.get(parent, 0) + 1
        for block in reversed(blocks):
            self._order.add(block)
        return min(known, request.reusable)

    def _evict(self) -> None:
        passed = []
        victim = self._order.pop()
        while self._children.get(victim):
            passed.append(victim)
            victim = self._order.pop()
        for block in reversed(passed):
            self._order.restore(block)
        parent = self._parents.pop(victim)
        self._children.pop(victim, None)
        if parent is not None:
            self._children[parent] -= 1


def simulate(requests: Sequence[ChainRequest], capacity: int | None, policy: str) -> Outcome:
    """Hits of a whole trace.

    Args:
        requests: in order of arrival.
        capacity: blocks of the pool; None for one that never evicts.
        policy: a name in `orders.POLICIES`.
    """
    blocks = sum(len(request.blocks) + request.partial for request in requests)
    size = capacity if capacity is not None else blocks
    order: Order[int] = _belady(requests) if policy == BELADY else ORDERS[policy](size)
    cache = ChainCache(size, order)
    found = [cache.request(request) for request in requests]
    return Outcome(blocks, sum(hits or 0 for hits in found), sum(hits is None for hits in found))


def _belady(requests: Sequence[ChainRequest]) -> Belady:
    uses: dict[int, list[int]] = {}
    depth: dict[int, int] = {}
    for position, request in enumerate(requests):
        for place, block in enumerate(request.blocks):
            uses.setdefault(block, []).append(position)
            depth[block] = place
    return Belady(dict(uses), depth)
