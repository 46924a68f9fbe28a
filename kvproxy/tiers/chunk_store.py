"""The interface to a store of KV chunks."""

from dataclasses import dataclass
from typing import Protocol

ChunkData = bytes | bytearray | memoryview
"""A chunk's bytes. `ChunkStore.get` returns a writable buffer, which torch can use without a copy."""


class TierError(Exception):
    """A chunk store failed. `TierChain` counts the error and continues without the store."""


@dataclass(frozen=True, slots=True)
class TierStats:
    """Statistics of a tier since the process started."""

    name: str
    chunks: int  # in Redis, only chunks that this process wrote or read
    bytes: int
    limit: int | None  # in bytes; None for Redis
    evictions: int
    available: bool = True
    failure: str | None = None  # the error of the last write or read, until one succeeds
    hits: int = 0
    misses: int = 0
    damaged: int = 0  # chunks with a wrong checksum or header
    errors: int = 0
    dropped: int = 0  # chunks that were not written, because too many writes were pending
    bytes_loaded: int = 0
    tokens_loaded: int = 0  # prompt tokens that were not computed, because this tier had them


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

    def clear(self) -> int:
        """Delete all chunks, and return their number."""

    def stats(self) -> TierStats: ...

    def close(self) -> None: ...
