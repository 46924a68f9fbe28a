"""Evicts the most recently used idle block first, which suits a loop over more prompts than fit into the pool."""

from collections import OrderedDict
from collections.abc import Hashable


class MRU:
    """`capacity` is the number of blocks of the pool; this policy does not need it."""

    def __init__(self, capacity: int) -> None:
        self._keys: OrderedDict[Hashable, None] = OrderedDict()

    def add(self, key: Hashable) -> None:
        self._keys[key] = None

    def remove(self, key: Hashable) -> None:
        del self._keys[key]

    def pop(self) -> Hashable:
        if not self._keys:
            raise LookupError
        return self._keys.popitem()[0]

    def restore(self, key: Hashable) -> None:
        # Blocks after it are evicted first: the next `pop` must not return it again.
        self._keys[key] = None
        self._keys.move_to_end(key, last=False)
