"""Chunks in host memory, evicted in LRU order."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from kvproxy.tiers.store import Data, StoreStats


class HostStore:
    """Buffers in memory.

    Args:
        limit: maximum bytes.
        pin: moves a buffer into page-locked memory, from which GPUs copy faster.
    """

    name = "host"
    remote = False
    available = True

    def __init__(self, limit: int, pin: Callable[[Data], Data] | None = None) -> None:
        self._limit = limit
        self._pin = pin
        self._chunks: OrderedDict[str, Data] = OrderedDict()
        self._bytes = 0
        self._evictions = 0
        self._lock = Lock()

    def get(self, key: str) -> Data | None:
        with self._lock:
            found = self._chunks.get(key)
            if found is not None:
                self._chunks.move_to_end(key)
            return found

    def put(self, key: str, data: Data) -> None:
        if len(data) > self._limit:
            return
        stored = data if self._pin is None else self._pin(data)
        with self._lock:
            self._remove(key)
            self._chunks[key] = stored
            self._bytes += len(stored)
            while self._bytes > self._limit:
                self._remove(next(iter(self._chunks)))
                self._evictions += 1

    def contains(self, key: str) -> bool:
        return key in self._chunks

    def should_put(self, key: str) -> bool:
        return key not in self._chunks

    def delete(self, key: str) -> None:
        with self._lock:
            self._remove(key)

    def clear(self, matches: Callable[[str], bool]) -> int:
        with self._lock:
            keys = [key for key in self._chunks if matches(key)]
            for key in keys:
                self._remove(key)
            return len(keys)

    def _remove(self, key: str) -> None:
        data = self._chunks.pop(key, None)
        if data is not None:
            self._bytes -= len(data)

    def stats(self) -> StoreStats:
        with self._lock:
            return StoreStats(self.name, len(self._chunks), self._bytes, self._limit, self._evictions)

    def close(self) -> None:
        with self._lock:
            self._chunks.clear()
            self._bytes = 0
