"""The eviction policy LRU."""

from collections import OrderedDict
from typing import Generic

from kvproxy.blocks.eviction.free_queues import Key


class LRU(Generic[Key]):
    def __init__(self, capacity: int) -> None:
        self._keys: OrderedDict[Key, None] = OrderedDict()

    def add(self, key: Key) -> None:
        self._keys[key] = None

    def remove(self, key: Key) -> None:
        del self._keys[key]

    def pop(self) -> Key:
        return self._keys.popitem(last=False)[0]

    def restore(self, key: Key) -> None:
        self._keys[key] = None
        self._keys.move_to_end(key, last=False)
