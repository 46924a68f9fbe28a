import math
import time
from collections.abc import Callable


class TokenBucket:
    """A rate limit in units (requests or tokens) per minute. The bucket starts full, and may be overdrawn.

    Attributes:
        share: fraction of the limit at which the bucket refills.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self.share = 1.0
        self._clock = clock
        self._level = float(per_minute)
        self._updated = clock()

    @property
    def level(self) -> float:
        now = self._clock()
        self._level = min(self.per_minute, self._level + (now - self._updated) * self.share * self.per_minute / 60)
        self._updated = now
        return self._level

    @level.setter
    def level(self, units: float) -> None:
        self._level, self._updated = min(self.per_minute, units), self._clock()

    def take(self, units: float) -> None:
        """Take units, even if they are not available; negative units are returned to the bucket."""
        self.level -= units

    def seconds_until(self, units: float) -> float:
        return max(0.0, units - self.level) * 60 / (self.share * self.per_minute)

    def headers(self, unit: str) -> dict[str, str]:
        return {
            f"x-ratelimit-limit-{unit}": str(self.per_minute),
            f"x-ratelimit-remaining-{unit}": str(max(0, int(self.level))),
            f"x-ratelimit-reset-{unit}": format_limit_reset(self.seconds_until(self.per_minute)),
        }


def format_limit_reset(seconds: float) -> str:
    """Format seconds as OpenAI's header `x-ratelimit-reset-*`, rounded up: `350ms`, `12s`, `1m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
