from dataclasses import dataclass


@dataclass(slots=True)
class StreamCounts:
    """Counts of batches and incidents of one event stream since the proxy's start.

    Attributes:
        gaps: gaps in the batch numbers.
        losses: times that the mirror was cleared, because batches were lost.
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
    """Status of one event stream. See `Sequencer` for `next` and `complete`."""

    endpoint: str
    connected: bool
    next: int
    complete: bool
    unknown_removals: int
    error: str | None
    replay_fails: bool = False
