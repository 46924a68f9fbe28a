"""The protocol of chunk stores, and their statistics."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Data = bytes | bytearray | memoryview
"""A chunk as `codec` writes it. `get` returns a writable buffer (`bytearray`), because torch reads it in place."""


class TierError(Exception):
    """A store failed; the chain counts the error and continues without the store."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Statistics of a store.

    Attributes:
        name: host, disk or redis.
        chunks, bytes: content, as far as this process knows.
        limit: maximum bytes; None if the store decides.
        evictions: chunks evicted to make room.
        available: False while the store is not used after failures.
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
        hits, misses: lookups with and without a chunk.
        damaged: invalid chunks, which were deleted.
        errors: failed calls.
        dropped: chunks that were never written, because too many were pending.
        bytes_loaded: bytes of the hits.
    """

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    errors: int = 0
    dropped: int = 0
    bytes_loaded: int = 0


class ChunkStore(Protocol):
    """Chunks by key; thread-safe. All methods except `should_put` and `stats` may raise TierError."""

    name: str
    remote: bool
    """Whether `contains` calls another machine; the engine thread calls it on local stores only."""

    @property
    def available(self) -> bool:
        """False while the store is not used after failures."""

    def get(self, key: str) -> Data | None:
        """Return a chunk, or None."""

    def put(self, key: str, data: Data) -> None:
        """Store a chunk; the caller does not change the buffer afterwards."""

    def contains(self, key: str) -> bool:
        """Return whether the store has a chunk; does not count as a use."""

    def should_put(self, key: str) -> bool:
        """Return whether a chunk should be stored; uses local information only."""

    def delete(self, key: str) -> None:
        """Delete a chunk if it exists."""

    def clear(self, matches: Callable[[str], bool]) -> int:
        """Delete the chunks with matching keys; return their number."""

    def stats(self) -> StoreStats:
        """Return the store's statistics."""

    def close(self) -> None:
        """Close files and connections."""
