"""Logs retries of requests: in an outage, a line for each request would hide the other lines."""

import logging
import time
from collections.abc import Callable

from kvproxy.apis.api_request import ApiRequest

_INTERVAL = 60.0
"""Seconds between two lines with one cause."""
_MAX_CAUSES = 1024
_log = logging.getLogger("kvproxy")


class RetryLog:
    """Logs the first retry with each cause, and then one a minute with the number of retries since the last line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._causes: dict[tuple[str, ...], tuple[float, int]] = {}

    def warn(self, request: ApiRequest, kind: str, message: str, *, upstream: str | None = None) -> None:
        """Log a retry.

        Args:
            kind: the status or the class of the error. A cause is the upstream or the model, and the kind.
            message: one sentence. With the JSON format, the line also has the upstream, the model, and the request's id.
        """
        key, now = (upstream or f"model {request.model}", kind), self._clock()
        next_line, unlogged = self._causes.get(key, (0.0, 0))
        if now < next_line:
            self._causes[key] = next_line, unlogged + 1
            return
        if len(self._causes) >= _MAX_CAUSES:
            self._causes.clear()
        self._causes[key] = now + _INTERVAL, 0
        repeated = f" (and {unlogged:,} more since the last such line)" if unlogged else ""
        fields = {"request_id": request.request_id, "upstream": upstream, "model": request.model or None}
        _log.warning("%s%s", message, repeated, extra={"fields": fields})
