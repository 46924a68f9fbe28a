"""How many prompt tokens may be computed a minute for what is pinned."""

import time
from collections.abc import Callable


class Budget:
    """Fills evenly, and holds a minute's tokens at most.

    Args:
        per_minute: tokens.
        clock: seconds that only rise.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = float(per_minute)
        self._clock = clock
        self._left = self._most
        self._at = clock()

    def allows(self, tokens: int) -> bool:
        """Whether so many tokens may be computed now. A chain longer than a minute's tokens waits until none are owed."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._most / 60)
        self._at = now
        return self._left >= min(tokens, self._most)

    def spend(self, tokens: int) -> None:
        """They were computed."""
        self._left -= tokens
