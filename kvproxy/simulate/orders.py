"""Orders of eviction over plain integers, for simulation: LRU, LFU, S3-FIFO, ARC, and Belady's, which knows the future.

A key is added when it becomes idle, removed when it is hit, and popped when its place is needed.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Protocol


class Order(Protocol):
    """An order of eviction."""

    def add(self, key: int) -> None:
        """The key is idle now: new, or no longer in use after a hit."""

    def remove(self, key: int) -> None:
        """The key was hit and is in use."""

    def pop(self) -> int:
        """Give a key up. Raises LookupError when none is idle."""

    def restore(self, key: int) -> None:
        """Take a popped key back as the next to go."""


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


class LFU:
    """Least often used first, then least recently; counts end with the key's stay."""

    def __init__(self, capacity: int) -> None:
        self._uses: dict[int, int] = {}
        self._buckets: dict[int, OrderedDict[int, None]] = {}
        self._counts: list[int] = []

    def add(self, key: int) -> None:
        count = self._uses.setdefault(key, 1)
        bucket = self._buckets.get(count)
        if bucket is None:
            bucket = self._buckets[count] = OrderedDict()
            heapq.heappush(self._counts, count)
        bucket[key] = None

    def remove(self, key: int) -> None:
        del self._buckets[self._uses[key]][key]
        self._uses[key] += 1

    def pop(self) -> int:
        while self._counts:
            bucket = self._buckets[self._counts[0]]
            if bucket:
                key = bucket.popitem(last=False)[0]
                del self._uses[key]
                return key
            del self._buckets[heapq.heappop(self._counts)]
        raise LookupError

    def restore(self, key: int) -> None:
        self.add(key)
        self._buckets[1].move_to_end(key, last=False)


class S3FIFO:
    """Three queues (Yang et al., SOSP 2023): newcomers must be used again in a small one to enter the main one."""

    SMALL_SHARE = 0.1

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._small: deque[int] = deque()
        self._main: deque[int] = deque()
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._uses: dict[int, int] = {}
        self._busy: set[int] = set()

    def add(self, key: int) -> None:
        if key in self._busy:
            self._busy.discard(key)
            return
        self._uses[key] = 0
        if key in self._ghosts:
            del self._ghosts[key]
            self._main.append(key)
        else:
            self._small.append(key)

    def remove(self, key: int) -> None:
        # A hit leaves the key's place in its queue as it is; it only may not be given up while in use.
        self._busy.add(key)
        self._uses[key] = min(3, self._uses[key] + 1)

    def pop(self) -> int:
        if len(self._uses) == len(self._busy):
            raise LookupError
        while True:
            from_small = len(self._small) > self.SMALL_SHARE * self._capacity or not self._main
            queue = self._small if from_small else self._main
            key = queue.popleft()
            if key in self._busy:
                (self._main if from_small else queue).append(key)
            elif self._uses[key] > 0:
                self._uses[key] = 0 if from_small else self._uses[key] - 1
                self._main.append(key)
            else:
                del self._uses[key]
                if from_small:
                    self._remember(key)
                return key

    def _remember(self, key: int) -> None:
        self._ghosts[key] = None
        if len(self._ghosts) > self._capacity:
            self._ghosts.popitem(last=False)

    def restore(self, key: int) -> None:
        self._ghosts.pop(key, None)
        self._uses[key] = 0
        self._small.appendleft(key)


class ARC:
    """Recent and frequent keys in two lists whose balance follows the ghosts that come back (Megiddo, FAST 2003)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._target = 0.0
        self._recent: OrderedDict[int, None] = OrderedDict()
        self._frequent: OrderedDict[int, None] = OrderedDict()
        self._recent_ghosts: OrderedDict[int, None] = OrderedDict()
        self._frequent_ghosts: OrderedDict[int, None] = OrderedDict()
        self._hit: set[int] = set()

    def add(self, key: int) -> None:
        if key in self._hit:
            self._hit.discard(key)
            self._frequent[key] = None
        elif key in self._recent_ghosts:
            step = max(1.0, len(self._frequent_ghosts) / len(self._recent_ghosts))
            self._target = min(float(self._capacity), self._target + step)
            del self._recent_ghosts[key]
            self._frequent[key] = None
        elif key in self._frequent_ghosts:
            step = max(1.0, len(self._recent_ghosts) / len(self._frequent_ghosts))
            self._target = max(0.0, self._target - step)
            del self._frequent_ghosts[key]
            self._frequent[key] = None
        else:
            self._recent[key] = None

    def remove(self, key: int) -> None:
        if key in self._recent:
            del self._recent[key]
        else:
            del self._frequent[key]
        self._hit.add(key)

    def pop(self) -> int:
        from_recent = bool(self._recent) and (len(self._recent) > self._target or not self._frequent)
        live, ghosts = (self._recent, self._recent_ghosts) if from_recent else (self._frequent, self._frequent_ghosts)
        if not live:
            raise LookupError
        key = live.popitem(last=False)[0]
        ghosts[key] = None
        if len(ghosts) > self._capacity:
            ghosts.popitem(last=False)
        return key

    def restore(self, key: int) -> None:
        self._recent_ghosts.pop(key, None)
        self._frequent_ghosts.pop(key, None)
        self._recent[key] = None
        self._recent.move_to_end(key, last=False)


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


ORDERS: dict[str, Callable[[int], Order]] = {"lru": LRU, "lfu": LFU, "s3fifo": S3FIFO, "arc": ARC}
BELADY = "belady"
POLICIES = (*ORDERS, BELADY)
