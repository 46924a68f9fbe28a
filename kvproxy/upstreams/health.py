"""Health of upstreams, by probes and by the requests of clients."""

import logging
import math
import time
from collections.abc import Callable

from kvproxy.errors import KvproxyError
from kvproxy.upstreams.client import UpstreamClient

_log = logging.getLogger("kvproxy")
_MAX_PAUSE_SECONDS = 60.0
_MAX_DOUBLINGS = 10
# An ejection for failed requests; each further one without a success between them takes twice as long.
EJECTION_SECONDS = 10.0
MAX_EJECTION_SECONDS = 300.0
MAX_COOLDOWN_SECONDS = 60.0
"""Maximum time of a `Retry-After` that is honoured."""
HANG_SECONDS = 30.0
"""Time without a byte of the response after which a request counts as failed when its client leaves."""
_WEIGHT_OF_PAST = 0.9


class Health:
    """Health of one upstream. `eject_after` consecutive failures eject it.

    - Failed probes and connections: a success restores it, but a request's success does not outweigh a probe that was
      answered with an error. Before the first response, one failure ejects it.
    - Failed requests, while probes succeed: it is ejected for a time. Afterwards, one more failed request ejects it again.
      Responses that break off have a count of their own, because they begin like a success.

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
        self.ejections = 0
        self.draining = False
        self.error: str | None = None
        self.lacks_route = False  # An https upstream answered that it has no `/health`.
        self._client = client
        self._eject_after = eject_after
        self._timeout = timeout
        self._interval = interval
        self._clock = clock
        self._next_probe = 0.0
        self._unreachable = 0  # Consecutive failed probes and connections.
        self._refuses_probes = False  # `/health` answered with an error.
        self._failed_requests = 0
        self._broken_responses = 0  # Consecutive ones.
        self._last_success = -math.inf
        self._longest_wait = 0.0  # Seconds until the first byte, of recent responses.
        self._ejected_until = 0.0
        self._ejection_seconds = EJECTION_SECONDS
        self._cooldown_until = 0.0
        self._has_responded = False
        self._outage_logged = False
        self._ejection_logged = False

    @property
    def failures(self) -> int:
        """Number of consecutive failures."""
        return max(self._unreachable, self._failed_requests, self._broken_responses)

    @property
    def is_unreachable(self) -> bool:
        """Whether it is ejected because of failed probes or connections."""
        return self._unreachable >= (self._eject_after if self._has_responded else 1)

    @property
    def outage(self) -> str | None:
        """The last failure, if the last probe or connection failed."""
        return self.error if self._unreachable else None

    @property
    def ejected(self) -> bool:
        return self.is_unreachable or self._clock() < self._ejected_until

    @property
    def available(self) -> bool:
        return not self.ejected and not self.draining and not self.is_cooling_down

    @property
    def is_cooling_down(self) -> bool:
        """Whether it named a time until which it refuses requests."""
        return self._clock() < self._cooldown_until

    @property
    def is_healthy(self) -> bool:
        return self.failures == 0 and not self.draining

    @property
    def state(self) -> str:
        if self.draining:
            return "draining"
        if self.ejected:
            return "ejected"
        return "cooldown" if self.is_cooling_down else "up"

    def record_success(self, received_at: float | None = None) -> None:
        """Record a response that began with a status below 500, to a request that it received at this time, if known."""
        self._last_success = self._clock()
        if received_at is not None:
            self._longest_wait = max(self._last_success - received_at, _WEIGHT_OF_PAST * self._longest_wait)
        if not self._refuses_probes:
            self._unreachable = 0
        self._failed_requests = 0
        self._has_responded = True
        is_ejected = self.ejected
        if not is_ejected and not self._broken_responses:
            self._ejection_seconds = EJECTION_SECONDS
            if self.failures == 0:
                self.error = None
        if is_ejected != self._ejection_logged:
            self.log_changes()

    def record_failure(self, error: str) -> None:
        """Record a connection that failed."""
        was_ejected = self.ejected
        self._unreachable += 1
        self.error = error
        self.ejections += self.ejected and not was_ejected
        self.log_changes()

    def record_failed_request(self, error: str) -> None:
        """Record a request that it received and did not answer, or answered with a status of 500 or above."""
        self._failed_requests += 1
        self._eject_if_failing(error, self._failed_requests)

    def record_new_key(self) -> None:
        """End an ejection for failed requests: their cause may be the former key."""
        self._failed_requests, self._ejected_until, self._ejection_seconds = 0, 0.0, EJECTION_SECONDS
        if self.failures == 0:
            self.error = None
        self.log_changes()

    def record_broken_response(self, error: str) -> None:
        """Record a response that broke off after it began."""
        self._broken_responses += 1
        self._eject_if_failing(error, self._broken_responses)

    def record_complete_response(self) -> None:
        """Record a response that it sent to the end."""
        if self._broken_responses:
            self._broken_responses = 0
            if self.failures == 0 and not self.ejected:
                self.error = None

    def record_cancelled_request(self, received_at: float) -> bool:
        """Record a request whose client left, or whose deadline passed, before the first byte.

        It is a failed request if the upstream had it for the silence limit, and has begun no other response since. A deadline
        that the client chose does not matter: impatient clients must not eject an upstream.

        Args:
            received_at: on the clock.

        Returns:
            Whether it counted as failed.
        """
        seconds = self._clock() - received_at
        if seconds < self._silence_limit or self._last_success >= received_at:
            return False
        self.record_failed_request(f"{self._client.url} sent no byte of a response within {seconds:.1f} s")
        return True

    @property
    def _silence_limit(self) -> float:
        """Seconds without a byte that are a failure: by the operator's setting, or else twice what responses took recently."""
        return self._client.first_byte_timeout or max(HANG_SECONDS, 2 * self._longest_wait)

    def _eject_if_failing(self, error: str, failures: int) -> None:
        self.error = error
        if self.ejected or failures < self._eject_after:
            return
        self._ejected_until = self._clock() + self._ejection_seconds
        self._ejection_seconds = min(2 * self._ejection_seconds, MAX_EJECTION_SECONDS)
        self.ejections += 1
        self.log_changes()

    def cool_down(self, seconds: float) -> None:
        """Send it no requests for this time, at most `MAX_COOLDOWN_SECONDS`, if another upstream is available."""
        was_cooling = self.is_cooling_down
        self._cooldown_until = self._clock() + min(seconds, MAX_COOLDOWN_SECONDS)
        if not was_cooling and self.is_cooling_down:
            _log.warning(
                "the upstream %s refuses requests for %.0f s", self._client.url, min(seconds, MAX_COOLDOWN_SECONDS)
            )

    @property
    def is_probe_due(self) -> bool:
        if not self.lacks_route:
            return True
        return self._unreachable > 0 and self._clock() >= self._next_probe

    async def probe(self) -> None:
        """Request `/health`. A status below 500 is a success, because some servers lack the route."""
        refuses = False
        try:
            status = await self._client.probe("/health", seconds=self._timeout)
        except KvproxyError as error:
            failure: str | None = error.message
        else:
            refuses = status >= 500
            failure = f"/health answered {status}" if refuses else None
            if failure is None:
                self.lacks_route = status >= 300 and self._client.url.startswith("https:")
        self._refuses_probes = refuses
        if failure is None:
            self._record_probe()
        else:
            if not self._outage_logged:
                verb = "reports that it is unhealthy" if refuses else "does not respond"
                _log.warning("the upstream %s %s: %s", self._client.url, verb, failure)
            self.record_failure(failure)
            pause = self._interval * 2 ** min(self._unreachable, _MAX_DOUBLINGS)
            self._next_probe = self._clock() + min(pause, _MAX_PAUSE_SECONDS)
        if self._outage_logged and failure is None:
            _log.info("the upstream %s responds again", self._client.url)
        self._outage_logged = failure is not None

    def _record_probe(self) -> None:
        if self.is_unreachable:
            # It was restarted, so the failures of its former process do not count.
            self._failed_requests = self._broken_responses = 0
            self._ejected_until = 0.0
        self._unreachable = 0
        self._has_responded = True
        if self.failures == 0 and not self.ejected:
            self.error = None
        self.log_changes()

    def log_changes(self) -> None:
        """Log the beginning and the end of an ejection."""
        if self.ejected == self._ejection_logged:
            return
        self._ejection_logged = self.ejected
        if self.ejected:
            _log.warning("the upstream %s is ejected: %s", self._client.url, self.error)
        else:
            _log.info("the upstream %s is no longer ejected", self._client.url)
