"""Status of an event stream, for `kvproxy upstreams` and `kvproxy blocks stats`."""

from dataclasses import dataclass


@dataclass(slots=True)
class StreamCounts:
    """Counts of batches and incidents since the proxy's start.

    Attributes:
        gaps: gaps in the batch numbers.
        losses: how often the mirror was cleared because of lost batches.
        malformed: messages that could not be decoded.
    """

    batches: int = 0
    duplicates: int = 0
    gaps: int = 0
    restarts: int = 0
    replays: int = 0
    losses: int = 0
    malformed: int = 0


@dataclass(slots=True, kw_only=True)
class StreamStatus(StreamCounts):
    """Status of one publisher's stream.

    Attributes:
        next: number of the next batch.
        complete: all batches since the publisher's start or last reset were applied.
    """

    endpoint: str
    connected: bool
    next: int
    complete: bool
    unknown_removals: int
    error: str | None
    replay_fails: bool = False
