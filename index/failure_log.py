"""Logs repeated failures once, and their end."""

import logging
import time
from collections import deque

_INTERVAL = 60.0  # Seconds.
_MAX_OUTAGES = 5  # In an interval: with one damaged page, failures and successes alternate with each request.
_log = logging.getLogger("kvproxy")


class FailureLog:
    """Logs the beginning and the end of each outage, at most of five outages a minute.

    If an outage lasts longer than this minute, its beginning is logged afterwards.
    """

    def __init__(self) -> None:
        self.is_failing = False
        self._is_logged = False
        self._logged: deque[float] = deque(maxlen=_MAX_OUTAGES)

    def log_failure(self, message: str, *values: object) -> None:
        if not self._is_logged and self._may_log():
            self._logged.append(time.monotonic())
            self._is_logged = True
            _log.error(message, *values)
        self.is_failing = True

    def _may_log(self) -> bool:
        return len(self._logged) < _MAX_OUTAGES or time.monotonic() - self._logged[0] >= _INTERVAL

    def log_recovery(self, message: str, *values: object) -> bool:
        was_logged = self.is_failing and self._is_logged
        if was_logged:
            self._is_logged = False
            _log.warning(message, *values)
        self.is_failing = False
        return was_logged
