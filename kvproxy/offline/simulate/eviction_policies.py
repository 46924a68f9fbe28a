"""Eviction policies for simulations: the block cache's policies, and Belady's optimal policy, which knows all later requests."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence

from kvproxy.blocks.eviction import POLICIES, EvictionPolicy


class LRU:
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
    """Evicts the key whose next use is the latest, which is optimal. Of several such keys, it evicts the deepest in its chain.

    Args:
        uses: for each key, the indexes of the requests that use it, ascending.
        depth: for each key, its index in its chain.
    """

    def __init__(self, uses: dict[int, Sequence[int]], depth: dict[int, int]) -> None:
        self._uses = uses
        self._depth = depth
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


ONLINE_POLICIES: dict[str, Callable[[int], EvictionPolicy[int]]] = {"lru": LRU, **POLICIES}
BELADY = "belady"
POLICY_NAMES = (*ONLINE_POLICIES, BELADY)
