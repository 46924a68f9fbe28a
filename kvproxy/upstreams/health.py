"""Health of upstreams, by probes and by the requests of clients."""

import logging
import time
from collections.abc import Callable

from kvproxy.errors import KvproxyError
from kvproxy.upstreams.client import UpstreamClient

_log = logging.getLogger("kvproxy")
_MAX_PAUSE_SECONDS = 60.0
_MAX_DOUBLINGS = 10


class Health:
    """Health of one upstream. `eject_after` consecutive failures eject it, and a success restores it.

    Before the first response, one failure ejects it.

    An https upstream without `/health`, such as a paid API, is probed only after a failure: regular requests for a missing
    route count as abuse at some providers. Requests of clients report its failures.
    """

    def __init__(
        self,
        client: UpstreamClient,
        eject_after: int,
        timeout: float,
        interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failures = 0
        self.ejections = 0
        self.draining = False
        self.error: str | None = None
        self._client = client
        self._eject_after = eject_after
        self._timeout = timeout
        self._interval = interval
        self._clock = clock
        self._next_probe = 0.0
        self.lacks_route = False  # An https upstream answered that it has no `/health`.
        self._has_responded = False
        self._outage_logged = False

    @property
    def ejected(self) -> bool:
        return self.failures >= (self._eject_after if self._has_responded else 1)

    @property
    def available(self) -> bool:
        return not self.ejected and not self.draining

    @property
    def is_healthy(self) -> bool:
        return self.failures == 0 and not self.draining

    @property
    def state(self) -> str:
        if self.draining:
            return "draining"
        return "ejected" if self.ejected else "up"

    def record_success(self) -> None:
        self.failures = 0
        self.error = None
        self._has_responded = True

    def record_failure(self, error: str) -> None:
        was_ejected = self.ejected
        self.failures += 1
        self.error = error
        self.ejections += self.ejected and not was_ejected

    @property
    def is_probe_due(self) -> bool:
        if not self.lacks_route:
            return True
        return self.failures > 0 and self._clock() >= self._next_probe

    async def probe(self) -> None:
        """Request `/health`. A status below 500 is a success, because some servers lack the route."""
        try:
            status = await self._client.probe("/health", seconds=self._timeout)
        except KvproxyError as error:
            failure: str | None = error.message
        else:
            failure = None if status < 500 else f"/health answered {status}"
            if failure is None:
                self.lacks_route = status >= 300 and self._client.url.startswith("https:")
        if failure is None:
            self.record_success()
            if self._outage_logged:
                _log.info("the upstream %s responds again", self._client.url)
        else:
            self.record_failure(failure)
            pause = self._interval * 2 ** min(self.failures, _MAX_DOUBLINGS)
            self._next_probe = self._clock() + min(pause, _MAX_PAUSE_SECONDS)
            if not self._outage_logged:
                _log.warning("the upstream %s does not respond: %s", self._client.url, failure)
        self._outage_logged = failure is not None
