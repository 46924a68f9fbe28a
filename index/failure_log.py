"""Logs repeated failures once, and their end."""

import logging
import time

_INTERVAL = 60.0  # Seconds. With one damaged page, failures and successes alternate.
_log = logging.getLogger("kvproxy")


class FailureLog:
    """Logs the first of consecutive failures, but at most one failure a minute, and the recovery from a logged failure."""

    def __init__(self) -> None:
        self.is_failing = False
        self._is_logged = False
        self._next_log = 0.0

    def log_failure(self, message: str, *values: object) -> None:
        if not self.is_failing and time.monotonic() >= self._next_log:
            self._next_log = time.monotonic() + _INTERVAL
            self._is_logged = True
            _log.error(message, *values)
        self.is_failing = True

    def log_recovery(self, message: str, *values: object) -> bool:
        was_logged = self.is_failing and self._is_logged
        if was_logged:
            self._is_logged = False
            _log.warning(message, *values)
        self.is_failing = False
        return was_logged
