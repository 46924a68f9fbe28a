"""Token buckets: so much a minute, refilled as time passes, for what is known only when it is done."""

import time
from collections.abc import Callable


class Bucket:
    """So many units a minute. It begins full, holds a minute's worth, and may be in debt.

    Args:
        per_minute: units.
        clock: seconds, rising.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._at = clock()

    @property
    def level(self) -> float:
        """Units that are there now; below 0 in debt."""
        now = self._clock()
        self._level = min(self.per_minute, self._level + (now - self._at) * self.per_minute / 60)
        self._at = now
        return self._level

    def take(self, units: float) -> None:
        """Take units, whether they are there or not; a negative number gives some back."""
        self._level = min(self.per_minute, self.level - units)

    def wait(self, units: float) -> float:
        """Seconds until so many units are there, if nobody takes any meanwhile."""
        return max(0.0, units - self.level) * 60 / self.per_minute

    def told(self, unit: str) -> dict[str, str]:
        """The headers that tell a client of it, as OpenAI's API has them."""
        return {
            f"x-ratelimit-limit-{unit}": str(self.per_minute),
            f"x-ratelimit-remaining-{unit}": str(max(0, int(self.level))),
            f"x-ratelimit-reset-{unit}": duration(self.wait(self.per_minute)),
        }


def duration(seconds: float) -> str:
    """Seconds in the form of those headers: `350ms`, `12s`, `1m0s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
