"""Cache resets that an engine confirmed but has not published.

vLLM confirms a reset at once, and publishes `AllBlocksCleared` with its next step. Until then the cache is empty, and all
events that arrive were published before the reset.
"""

from kvproxy.mirror.event_decoder import ClearedEvent, EventBatch

MAX_BATCHES = 256
"""Number of batches after a confirmed reset that are ignored if the engine never publishes the reset."""


class PendingResets:
    """Counts the published and the confirmed resets of one publisher's cache."""

    def __init__(self) -> None:
        self._num_published = 0
        self._num_confirmed = 0
        self._last_number = -1
        self._ignored_until: int | None = None

    def mark(self) -> int:
        """Return the number of known resets; call it before you request a reset."""
        return max(self._num_published, self._num_confirmed)

    def confirm(self, mark: int, next_number: int) -> bool:
        """Record a reset that the engine confirmed; return whether it is not published yet.

        `mark` was taken before the request; `next_number` is the number of the publisher's next batch.
        """
        if self._num_published > mark:
            return False
        self._num_confirmed = max(self._num_confirmed, mark + 1)
        self._ignored_until = next_number + MAX_BATCHES
        return True

    def restart(self) -> None:
        """Start again with a new publisher, whose cache is empty."""
        self._num_confirmed, self._last_number, self._ignored_until = self._num_published, -1, None

    def is_before_reset(self, number: int, batch: EventBatch) -> bool:
        """Return whether a batch was published before a confirmed reset, and count the resets in it."""
        if number > self._last_number:
            # A replay repeats batches: count each once.
            self._num_published += sum(isinstance(event, ClearedEvent) for event in batch.events)
            self._last_number = number
        if self._ignored_until is None:
            return False
        if self._num_published >= self._num_confirmed or number >= self._ignored_until:
            self._num_confirmed, self._ignored_until = self._num_published, None
            return False
        return True
