"""A circuit breaker: after some failures in a row a service is left alone for a while, then tried once."""

import time
from collections.abc import Callable
from threading import Lock


class CircuitBreaker:
    """Closed (calls go through) until `failures` in a row; then open for `rest` seconds; then one call decides.

    Args:
        failures: failed calls in a row that open it.
        rest: seconds without calls.
        clock: seconds, ever growing.
    """

    def __init__(self, failures: int = 3, rest: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures = failures
        self._rest = rest
        self._clock = clock
        self._count = 0
        self._opened: float | None = None
        self._lock = Lock()

    @property
    def ready(self) -> bool:
        """Whether a call would be allowed now."""
        opened = self._opened
        return opened is None or self._clock() - opened >= self._rest

    def allow(self) -> bool:
        """Whether to make a call now; its outcome must then be told by `success` or `failure`."""
        with self._lock:
            if not self.ready:
                return False
            if self._opened is not None:
                # The trial: whoever comes meanwhile still finds the circuit open.
                self._opened = self._clock()
            return True

    def success(self) -> None:
        with self._lock:
            self._count = 0
            self._opened = None

    def failure(self) -> None:
        with self._lock:
            self._count += 1
            if self._count >= self._failures:
                self._opened = self._clock()
