"""Orders of eviction over plain integers, for simulation: those of the pool, LRU, and Belady's, which knows the future."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence

from kvproxy.blocks.policies import ORDERS as POOL_ORDERS
from kvproxy.blocks.policies import Order


class LRU:
    """Least recently used first."""

    def __init__(self, capacity: int) -> None:
        self._keys: OrderedDict[int, None] = OrderedDict()

    def add(self, key: int) -> None:
        self._keys[key] = None

    def remove(self, key: int) -> None:
        del self._keys[key]

    def pop(self) -> int:
        return self._keys.popitem(last=False)[0]

    def restore(self, key: int) -> None:
        self._keys[key] = None
        self._keys.move_to_end(key, last=False)


class Belady:
    """The key whose next use is farthest away goes first, the deepest of a chain among equals: no order can do better.

    Args:
        uses: positions in the trace at which each key is used, in order.
        depth: each key's place in its chain.
    """

    def __init__(self, uses: dict[int, Sequence[int]], depth: dict[int, int]) -> None:
        self._uses = uses
        self._depth = depth
        self._seen: dict[int, int] = {}
        self._heap: list[tuple[float, int, int]] = []
        self._idle: dict[int, tuple[float, int, int]] = {}

    def add(self, key: int) -> None:
        # A key is added once for every use, so their number tells where in its own future it stands.
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        uses = self._uses[key]
        following = uses[seen] if seen < len(uses) else float("inf")
        entry = self._idle[key] = (-following, -self._depth[key], key)
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


ORDERS: dict[str, Callable[[int], Order[int]]] = {"lru": LRU, **POOL_ORDERS}
BELADY = "belady"
POLICIES = (*ORDERS, BELADY)
