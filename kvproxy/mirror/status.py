"""How well one event stream is followed, as `kvproxy upstreams` and `kvproxy blocks stats` show it."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """What came in since we began to listen.

    Attributes:
        batches, duplicates: batches applied, and those that came again.
        gaps, restarts: holes in the numbers, and restarts of the publisher.
        replays: requests for what was missed.
        losses: how often the view was given up because something could not be had again.
        malformed: messages that could not be read.
    """

    batches: int = 0
    duplicates: int = 0
    gaps: int = 0
    restarts: int = 0
    replays: int = 0
    losses: int = 0
    malformed: int = 0


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One publisher's stream at this moment.

    Attributes:
        endpoint: the publisher's address.
        connected: whether its socket is open.
        next: number of the batch that is due.
        complete: whether everything since the publisher's start was applied.
        silent_seconds: seconds since the last message; None before the first.
        unknown_removals: removals of copies that were never seen.
        batches, duplicates, gaps, restarts, replays, losses, malformed: see `Counts`.
        error: the last thing that went wrong; None where nothing has.
        replay_fails: whether the last request for missed batches was not answered.
    """

    endpoint: str
    connected: bool
    next: int
    complete: bool
    silent_seconds: float | None
    unknown_removals: int
    batches: int
    duplicates: int
    gaps: int
    restarts: int
    replays: int
    losses: int
    malformed: int
    error: str | None
    replay_fails: bool = False
