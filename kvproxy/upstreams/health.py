import logging

from kvproxy.errors import KvproxyError
from kvproxy.upstreams.client import UpstreamClient

_log = logging.getLogger("kvproxy")


class Health:
    """Health of one upstream. `eject_after` consecutive failures eject it, and a success restores it.

    Before the first response, one failure ejects it.
    """

    def __init__(self, client: UpstreamClient, eject_after: int, timeout: float) -> None:
        self.failures = 0
        self.ejections = 0
        self.draining = False
        self.error: str | None = None
        self._client = client
        self._eject_after = eject_after
        self._timeout = timeout
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

    async def probe(self) -> None:
        """Request `/health`. A status below 500 is a success, because some servers lack the route."""
        try:
            status = await self._client.probe("/health", seconds=self._timeout)
        except KvproxyError as error:
            failure: str | None = error.message
        else:
            failure = None if status < 500 else f"/health answered {status}"
        if failure is None:
            self.record_success()
            if self._outage_logged:
                _log.info("the upstream %s responds again", self._client.url)
        else:
            self.record_failure(failure)
            if not self._outage_logged:
                _log.warning("the upstream %s does not respond: %s", self._client.url, failure)
        self._outage_logged = failure is not None
