"""Replaces the upstreams of a running proxy by the upstreams of changed settings."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

from kvproxy.errors import SettingsError
from kvproxy.settings import Settings, UpstreamServer
from kvproxy.upstreams.fleet_engine import FleetEngine

_log = logging.getLogger("kvproxy")


def check_distinct_urls(servers: Sequence[UpstreamServer]) -> None:
    if len({server.url for server in servers}) < len(servers):
        raise SettingsError("two upstreams have the same URL: set a weight if one is faster", param="upstreams")


class PreparedEngines:
    """The engines of changed settings, by URL: new engines, and engines of `before` that can apply their settings.

    Reads the API keys. Raises SettingsError.
    """

    def __init__(self, before: Mapping[str, FleetEngine], settings: Settings) -> None:
        check_distinct_urls(settings.servers)
        self.engines: dict[str, FleetEngine] = {}
        self._before = before
        self._credentials = {server.url: server.authorization_or_key() for server in settings.servers}
        for server in settings.servers:
            known = before.get(server.url)
            is_kept = known is not None and known.can_reload(server)
            self.engines[server.url] = known if known is not None and is_kept else FleetEngine(server, settings)

    async def start(self, drained: Collection[str]) -> None:
        """Start the new engines. Those with URLs in `drained` are drained."""
        for url, engine in self.engines.items():
            replaced = self._before.get(url)
            if engine is not replaced:
                engine.health.draining = url in drained if replaced is None else replaced.health.draining
                await engine.start()
                _log.info("the upstream %s is %s", url, "added" if replaced is None else "replaced")

    def apply(self, settings: Settings) -> None:
        """Apply the settings to the engines that remain."""
        for server in settings.servers:
            engine = self.engines[server.url]
            if engine is self._before.get(server.url):
                engine.reload(server, settings, self._credentials[server.url])


class RemovedEngines:
    """Engines that get no new requests. Each is closed after its requests in flight."""

    def __init__(self) -> None:
        self._closing: dict[FleetEngine, asyncio.Task[None]] = {}

    def add(self, engine: FleetEngine, interval: float) -> None:
        """Close an engine when it has no requests, which is checked at this interval in seconds."""
        _log.info("the upstream %s is removed; requests in flight: %d", engine.url, engine.client.admission.active)
        self._closing[engine] = task = asyncio.create_task(_close_after_requests(engine, interval))
        task.add_done_callback(lambda _: self._closing.pop(engine, None))

    async def close(self) -> None:
        engines, tasks = [*self._closing], [*self._closing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for engine in engines:
            await engine.close()


async def _close_after_requests(engine: FleetEngine, interval: float) -> None:
    admission = engine.client.admission
    while True:
        if not admission.active and not admission.waiting:
            await engine.close()
            return
        await asyncio.sleep(interval)
