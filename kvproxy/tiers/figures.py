"""What is shown of a tier."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierFigures:
    """A tier at one moment, and what became of its chunks since the start.

    Attributes:
        name: host, disk or redis.
        chunks, bytes: what it holds, as far as this process knows.
        limit: most bytes; None where the store itself decides.
        evictions: chunks dropped for room.
        available: False while it is passed over after failures.
        hits, misses: lookups that found a chunk, and those that did not.
        damaged: chunks that were not what their names say, and were deleted.
        errors: calls that failed.
        dropped: chunks that were never written, because too much waited to be.
        bytes_loaded: of the hits.
    """

    name: str
    chunks: int
    bytes: int
    limit: int | None
    evictions: int
    available: bool
    hits: int
    misses: int
    damaged: int
    errors: int
    dropped: int
    bytes_loaded: int
