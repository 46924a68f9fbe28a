"""ARC: adaptive replacement of recent and frequent keys."""

from collections import OrderedDict
from typing import Generic

from kvproxy.blocks.policies.policy import Key


class ARC(Generic[Key]):
    """Lists of recent and frequent keys, balanced by hits in their ghost lists (Megiddo and Modha, FAST 2003)."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._target = 0.0
        self._recent: OrderedDict[Key, None] = OrderedDict()
        self._frequent: OrderedDict[Key, None] = OrderedDict()
        self._recent_ghosts: OrderedDict[Key, None] = OrderedDict()
        self._frequent_ghosts: OrderedDict[Key, None] = OrderedDict()
        self._hit: set[Key] = set()

    def add(self, key: Key) -> None:
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

    def remove(self, key: Key) -> None:
        if key in self._recent:
            del self._recent[key]
        else:
            del self._frequent[key]
        self._hit.add(key)

    def pop(self) -> Key:
        from_recent = bool(self._recent) and (len(self._recent) > self._target or not self._frequent)
        live, ghosts = (self._recent, self._recent_ghosts) if from_recent else (self._frequent, self._frequent_ghosts)
        if not live:
            raise LookupError
        key = live.popitem(last=False)[0]
        ghosts[key] = None
        if len(ghosts) > self._capacity:
            ghosts.popitem(last=False)
        return key

    def restore(self, key: Key) -> None:
        self._recent_ghosts.pop(key, None)
        self._frequent_ghosts.pop(key, None)
        self._recent[key] = None
        self._recent.move_to_end(key, last=False)
