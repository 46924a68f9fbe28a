from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

ChunkData = bytes | bytearray | memoryview
"""A chunk's bytes. `ChunkStore.get` returns a writable buffer, which torch can use without a copy."""


class TierError(Exception):
    """A chunk store failed. `TierChain` counts the error and continues without the store."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Statistics of a store.

    Attributes:
        chunks, bytes: number and size of the chunks. Redis chunks count only if this process wrote or read them.
        limit: maximum size in bytes; None for Redis.
    """

    name: str
    chunks: int
    bytes: int
    limit: int | None
    evictions: int
    available: bool = True


@dataclass(frozen=True, slots=True)
class TierStats(StoreStats):
    """Statistics of a tier since the start.

    Attributes:
        damaged: chunks with a wrong checksum or header.
        dropped: chunks that were not written, because too many writes were pending.
    """

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    errors: int = 0
    dropped: int = 0
    bytes_loaded: int = 0


class ChunkStore(Protocol):
    """Stores chunks by key; thread-safe. All methods except `should_put` and `stats` may raise TierError."""

    name: str
    remote: bool
    """Whether `contains` calls another machine, so that the engine's thread must not call `contains`."""

    @property
    def available(self) -> bool: ...

    def get(self, key: str) -> ChunkData | None: ...

    def put(self, key: str, data: ChunkData) -> None:
        """Store a chunk. The caller must not change the buffer afterwards."""

    def contains(self, key: str) -> bool:
        """Whether the store has a chunk. The call does not count as a use for LRU."""

    def should_put(self, key: str) -> bool:
        """Whether the store is available and, as far as this process knows, lacks the chunk."""

    def delete(self, key: str) -> None: ...

    def clear(self, matches: Callable[[str], bool]) -> int: ...

    def stats(self) -> StoreStats: ...

    def close(self) -> None: ...


class LocalStore:
    """Base class of stores on this machine, with LRU eviction and a limit in bytes."""

    name: str
    remote = False
    available = True

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0
        self._evictions = 0
        self._lock = Lock()

    def contains(self, key: str) -> bool:
        return key in self._sizes

    def should_put(self, key: str) -> bool:
        return key not in self._sizes

    def delete(self, key: str) -> None:
        with self._lock:
            self._bytes -= self._sizes.pop(key, 0)
        self._remove(key)

    def _remove(self, key: str) -> None:
        raise NotImplementedError

    def clear(self, matches: Callable[[str], bool]) -> int:
        with self._lock:
            keys = [key for key in self._sizes if matches(key)]
        for key in keys:
            self.delete(key)
        return len(keys)

    def _add(self, key: str, size: int) -> None:
        with self._lock:
            self._sizes[key] = size
            self._bytes += size

    def _touch(self, key: str) -> None:
        with self._lock:
            if key in self._sizes:
                self._sizes.move_to_end(key)

    def _evict_to(self, limit: int) -> int:
        evicted = 0
        while self._bytes > limit:
            with self._lock:
                if not self._sizes:
                    break
                key, size = self._sizes.popitem(last=False)
                self._bytes -= size
                self._evictions += 1
            self._remove(key)
            evicted += 1
        return evicted

    def stats(self) -> StoreStats:
        with self._lock:
            return StoreStats(self.name, len(self._sizes), self._bytes, self._limit, self._evictions)

    def close(self) -> None: ...
