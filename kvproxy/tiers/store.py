"""The seam to wherever chunks are kept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Data = bytes | bytearray | memoryview
"""A chunk as `codec` writes it. What a store hands out must be writable (`bytearray`), for torch reads it in place."""


class TierError(Exception):
    """A store cannot answer now; the chain counts it and goes on without the store."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A store at one moment.

    Attributes:
        name: host, disk or redis.
        chunks, bytes: what it holds, as far as this process knows.
        limit: most bytes; None where the store itself decides.
        evictions: chunks dropped for room.
        available: False while it is passed over after failures.
    """

    name: str
    chunks: int
    bytes: int
    limit: int | None
    evictions: int
    available: bool = True


class ChunkStore(Protocol):
    """Chunks by key, safe to call from several threads. Any method but `wants` and `stats` may raise TierError."""

    name: str
    remote: bool
    """Whether `contains` asks another machine; the engine's thread asks local stores only."""

    @property
    def available(self) -> bool:
        """False while the store is left alone after failures."""

    def get(self, key: str) -> Data | None:
        """A chunk, or None."""

    def put(self, key: str, data: Data) -> None:
        """Keep a chunk; the buffer is not written to afterwards."""

    def contains(self, key: str) -> bool:
        """Whether a chunk is there, without counting it as used."""

    def wants(self, key: str) -> bool:
        """Whether a `put` is worth its while; answered at once, from what is known here."""

    def delete(self, key: str) -> None:
        """Drop a chunk, if it is there."""

    def clear(self, chosen: Callable[[str], bool]) -> int:
        """Drop the chunks whose keys are chosen; how many."""

    def stats(self) -> StoreStats:
        """Figures of this moment."""

    def close(self) -> None:
        """Release files and connections."""
