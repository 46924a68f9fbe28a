"""LFU: least frequently used first."""

import heapq
from collections import OrderedDict
from typing import Generic

from kvproxy.blocks.policies.policy import Key


class LFU(Generic[Key]):
    """Least frequently used first, then least recently; eviction resets a key's count."""

    def __init__(self, capacity: int) -> None:
        self._uses: dict[Key, int] = {}
        self._buckets: dict[int, OrderedDict[Key, None]] = {}
        self._counts: list[int] = []

    def add(self, key: Key) -> None:
        count = self._uses.setdefault(key, 1)
        bucket = self._buckets.get(count)
        if bucket is None:
            bucket = self._buckets[count] = OrderedDict()
            heapq.heappush(self._counts, count)
        bucket[key] = None

    def remove(self, key: Key) -> None:
        del self._buckets[self._uses[key]][key]
        self._uses[key] += 1

    def pop(self) -> Key:
        while self._counts:
            bucket = self._buckets[self._counts[0]]
            if bucket:
                key = bucket.popitem(last=False)[0]
                del self._uses[key]
                return key
            del self._buckets[heapq.heappop(self._counts)]
        raise LookupError

    def restore(self, key: Key) -> None:
        self.add(key)
        self._buckets[1].move_to_end(key, last=False)
