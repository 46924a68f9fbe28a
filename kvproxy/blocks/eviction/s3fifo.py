"""The eviction policy S3-FIFO (Yang et al., SOSP 2023)."""

from collections import OrderedDict, deque
from typing import Generic

from kvproxy.blocks.eviction.free_queues import Key


class S3FIFO(Generic[Key]):
    SMALL_SHARE = 0.1

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._small: deque[Key] = deque()
        self._main: deque[Key] = deque()
        self._ghosts: OrderedDict[Key, None] = OrderedDict()
        self._uses: dict[Key, int] = {}
        self._busy: set[Key] = set()

    def add(self, key: Key) -> None:
        if key in self._busy:
            self._busy.discard(key)
            return
        self._uses[key] = 0
        if key in self._ghosts:
            del self._ghosts[key]
            self._main.append(key)
        else:
            self._small.append(key)

    def remove(self, key: Key) -> None:
        # A hit does not move the key, but a key in use must not be evicted.
        self._busy.add(key)
        self._uses[key] = min(3, self._uses[key] + 1)

    def pop(self) -> Key:
        if len(self._uses) == len(self._busy):
            raise LookupError
        passed = 0  # consecutive keys in use; after a full turn of the main queue, try the small queue
        while True:
            large = len(self._small) > self.SMALL_SHARE * self._capacity
            from_small = bool(self._small) and (large or passed >= len(self._main))
            queue = self._small if from_small else self._main
            key = queue.popleft()
            if key in self._busy:
                self._main.append(key)
                passed += not from_small
            elif self._uses[key] > 0:
                self._uses[key] = 0 if from_small else self._uses[key] - 1
                self._main.append(key)
                passed = 0
            else:
                del self._uses[key]
                if from_small:
                    self._ghosts[key] = None
                    if len(self._ghosts) > self._capacity:
                        self._ghosts.popitem(last=False)
                return key

    def restore(self, key: Key) -> None:
        # Append: at the front, every eviction would pop the key again until its children are evicted.
        self._ghosts.pop(key, None)
        self._uses[key] = 0
        self._main.append(key)
