"""What counts while an engine has confirmed a reset of its cache, and its events do not tell of it yet.

vLLM answers a reset at once, and publishes `AllBlocksCleared` only with its next step. Until that event comes the cache is
empty, and whatever still arrives was published before the reset.
"""

from kvproxy.mirror.wire import Batch, Cleared

PATIENCE = 256
"""Batches after a confirmed reset among which the event that tells of it must be: an engine that never tells is believed
again after them."""


class Resets:
    """Resets of one publisher's cache: how many its events told of, and how many it confirmed."""

    def __init__(self) -> None:
        self._told = 0
        self._due = 0
        self._last = -1
        self._until: int | None = None

    def mark(self) -> int:
        """How many resets are known of, told or confirmed; to be taken before another one is asked for."""
        return max(self._told, self._due)

    def confirm(self, mark: int, next: int) -> bool:
        """The engine confirmed the reset that was asked for after `mark`.

        Args:
            mark: from `mark`.
            next: the first number that the publisher has not used yet, as far as is known.

        Returns:
            Whether its event is still to come, so that all that is known is void.
        """
        if self._told > mark:
            return False
        self._due = max(self._due, mark + 1)
        self._until = next + PATIENCE
        return True

    def restart(self) -> None:
        """The publisher is another one now: it has nothing to clear, and its numbers begin anew."""
        self._due, self._last, self._until = self._told, -1, None

    def voids(self, number: int, batch: Batch) -> bool:
        """Whether a batch is from before a confirmed reset, so that what it stored is gone."""
        if number > self._last:
            # Batches that come again in a replay are counted once.
            self._told += sum(isinstance(event, Cleared) for event in batch.events)
            self._last = number
        if self._until is None:
            return False
        if self._told >= self._due or number >= self._until:
            self._due, self._until = self._told, None
            return False
        return True
