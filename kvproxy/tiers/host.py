"""Chunks in the host's memory, the least recently used dropped first."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from kvproxy.tiers.store import Data, StoreStats


def _as_it_is(data: Data) -> Data:
    return data


class HostStore:
    """A dictionary of buffers under a limit of bytes.

    Args:
        limit: most bytes.
        pin: moves a buffer into page-locked memory, from which a GPU copies fastest; by default it stays where it is.
    """

    name = "host"
    remote = False
    available = True

    def __init__(self, limit: int, pin: Callable[[Data], Data] = _as_it_is) -> None:
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
        kept = self._pin(data)
        with self._lock:
            self._drop(key)
            self._chunks[key] = kept
            self._bytes += len(kept)
            while self._bytes > self._limit:
                self._drop(next(iter(self._chunks)))
                self._evictions += 1

    def contains(self, key: str) -> bool:
        return key in self._chunks

    def wants(self, key: str) -> bool:
        return key not in self._chunks

    def delete(self, key: str) -> None:
        with self._lock:
            self._drop(key)

    def clear(self, chosen: Callable[[str], bool]) -> int:
        with self._lock:
            doomed = [key for key in self._chunks if chosen(key)]
            for key in doomed:
                self._drop(key)
            return len(doomed)

    def _drop(self, key: str) -> None:
        old = self._chunks.pop(key, None)
        if old is not None:
            self._bytes -= len(old)

    def stats(self) -> StoreStats:
        with self._lock:
            return StoreStats(self.name, len(self._chunks), self._bytes, self._limit, self._evictions)

    def close(self) -> None:
        with self._lock:
            self._chunks.clear()
            self._bytes = 0
