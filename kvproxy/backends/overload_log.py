"""Refuses requests beyond a limit, and logs the setting to the operator."""

import logging
import time

from kvproxy.errors import Overloaded

RETRY_SECONDS = 1.0
_INTERVAL = 60.0  # Seconds between two lines on one limit.
_log = logging.getLogger("kvproxy")


class OverloadLog:
    """Logs reached limits, each at most once a minute: a line for each refused request would add to the overload."""

    def __init__(self) -> None:
        self._next_lines: dict[str, float] = {}

    def refuse(self, limit: str, cause: str) -> Overloaded:
        """Log the cause and the setting `limits.LIMIT`; return the error for the client, which names neither."""
        self.log(limit, cause)
        return overloaded(limit)

    def log(self, limit: str, cause: str) -> None:
        now = time.monotonic()
        if now >= self._next_lines.get(limit, 0.0):
            self._next_lines[limit] = now + _INTERVAL
            _log.warning("overloaded: %s; requests get 503, unless you raise the setting limits.%s", cause, limit)


def overloaded(limit: str | None = None) -> Overloaded:
    message = f"the proxy is overloaded: retry after {RETRY_SECONDS:g} s"
    return Overloaded(message, limit=limit, retry_after=RETRY_SECONDS)
