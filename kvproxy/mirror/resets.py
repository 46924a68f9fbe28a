"""What counts while an engine has confirmed a reset of its cache, and its events do not tell of it yet.

vLLM answers a reset at once, and publishes `AllBlocksCleared` only with its next step. Until that event comes the cache is
empty, and whatever still arrives was published before the reset.
"""

from kvproxy.mirror.wire import Batch

PATIENCE = 256
"""Batches after a confirmed reset among which the event that tells of it must be: an engine that never tells is believed
again after them."""


class ConfirmedReset:
    """Whether the batches of one publisher are from before a reset that it confirmed."""

    def __init__(self) -> None:
        self._until: int | None = None

    def confirm(self, next: int) -> None:
        """The engine confirmed a reset; `next` is the first number that it has not used yet, as far as is known."""
        self._until = next + PATIENCE

    def forget(self) -> None:
        """The publisher is another one now, which has nothing to clear."""
        self._until = None

    def voids(self, number: int, batch: Batch) -> bool:
        """Whether a batch is from before the reset, so that what it stored is gone."""
        if self._until is None:
            return False
        if batch.clears or number >= self._until:
            self._until = None
            return False
        return True
