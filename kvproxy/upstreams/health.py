import asyncio
import logging
from dataclasses import dataclass

from kvproxy.errors import KvproxyError
from kvproxy.upstreams.client import UpstreamClient

_log = logging.getLogger("kvproxy")


@dataclass(slots=True)
class Health:
    """Health of one engine. `eject_after` consecutive failures eject it, and a success restores it.

    Before the first response, one failure ejects it.
    """

    eject_after: int = 3
    failures: int = 0
    ejections: int = 0
    draining: bool = False
    error: str | None = None
    has_responded: bool = False

    @property
    def ejected(self) -> bool:
        return self.failures >= (self.eject_after if self.has_responded else 1)

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
        self.has_responded = True

    def record_failure(self, error: str) -> None:
        was_ejected = self.ejected
        self.failures += 1
        self.error = error
        self.ejections += self.ejected and not was_ejected


class HealthProbe:
    """Probes `/health` of one upstream, and records and logs the result."""

    def __init__(self, client: UpstreamClient, health: Health, timeout: float) -> None:
        self._client = client
        self._health = health
        self._timeout = timeout
        self._outage_logged = False

    async def run(self) -> None:
        """Send one probe. A status below 500 is a success, because some servers lack the route."""
        try:
            async with asyncio.timeout(self._timeout):
                reply = await self._client.request("GET", "/health", {})
                await reply.close()
        except TimeoutError:
            self._record(f"/health did not respond within {self._timeout:g} s")
        except KvproxyError as error:
            self._record(error.message)
        else:
            self._record(None if reply.status < 500 else f"/health answered {reply.status}")

    def _record(self, failure: str | None) -> None:
        if failure is not None:
            self._health.record_failure(failure)
            if not self._outage_logged:
                self._outage_logged = True
                _log.warning("the upstream %s does not respond: %s", self._client.url, failure)
            return
        if self._outage_logged:
            self._outage_logged = False
            _log.info("the upstream %s responds again", self._client.url)
        self._health.record_success()
