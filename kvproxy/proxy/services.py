"""What an app is made of, built once from the settings and handed to every route."""

import asyncio
import logging
from dataclasses import dataclass, field

from starlette.requests import Request

from kvproxy.engine.worker import EngineWorker
from kvproxy.errors import SettingsError
from kvproxy.index.errors import CacheStoreError, EmbedderError, VerifierError
from kvproxy.index.observations import Observations
from kvproxy.index.store import Capacity, open_store
from kvproxy.index.store.opening import open_observations
from kvproxy.proxy.answer import Answerer
from kvproxy.proxy.backend import Backend
from kvproxy.proxy.local import LocalBackend
from kvproxy.proxy.metrics import Metrics
from kvproxy.proxy.observer import make_observer
from kvproxy.proxy.prefix import EmbeddedPrefix, NoPrefix, PrefixView
from kvproxy.proxy.semantic import build_semantic
from kvproxy.proxy.upstream import UpstreamBackend
from kvproxy.settings import Settings

_HOUSEKEEPING = 30.0  # Seconds between two rounds.
_log = logging.getLogger("kvproxy")


@dataclass(frozen=True, slots=True)
class Services:
    """Parts of an app; `worker` is None where an upstream computes."""

    settings: Settings
    answerer: Answerer
    observations: Observations
    metrics: Metrics
    worker: EngineWorker | None
    prefix: PrefixView
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        await self.answerer.backend.start()
        self.tasks.append(asyncio.create_task(self._keep_house()))

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING)
            try:
                await asyncio.to_thread(self.answerer.cache.maintain)
            except Exception as error:
                # A server that is down, a full disk: neither may end all later rounds.
                _log.error("housekeeping failed, and is tried again: %s", error)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.answerer.flights.close()
        if self.answerer.observer is not None:
            await self.answerer.observer.close()
        await self.answerer.backend.close()
        await asyncio.to_thread(self.answerer.cache.close)
        self.observations.close()


def build(settings: Settings) -> Services:
    """Open the store, load embedder and model.

    Raises:
        SettingsError: the store, the embedder or a tier cannot be used.
        ModelUnsupported: the model cannot.
    """
    if settings.servers and settings.tiers.enabled:
        raise SettingsError(
            "tiers keep what the embedded engine computes: leave them out with an upstream", param="tiers"
        )
    try:
        capacity = Capacity(settings.cache.max_entries, settings.cache.max_bytes)
        store = open_store(settings.store_where, capacity=capacity)
        observations = open_observations(settings.store_where)
        semantic = build_semantic(settings, store, observations)
    except (CacheStoreError, EmbedderError, VerifierError) as error:
        raise SettingsError(str(error)) from None
    metrics = Metrics()
    worker = None if settings.servers else EngineWorker.load(settings.engine, settings.model, settings.tiers)
    if worker is not None:
        worker.observe = metrics.generated
    backend, prefix = _local(worker) if worker else _upstreams(settings)
    observer = make_observer(semantic, backend, settings.cache) if semantic is not None else None
    answerer = Answerer(backend, store, semantic, settings.cache, observer=observer)
    return Services(settings, answerer, observations, metrics, worker, prefix)


def _local(worker: EngineWorker) -> tuple[Backend, PrefixView]:
    backend = LocalBackend(worker)
    return backend, EmbeddedPrefix(backend)


def _upstreams(settings: Settings) -> tuple[Backend, PrefixView]:
    servers = settings.servers
    if len(servers) == 1 and servers[0].kv_events is None:
        return UpstreamBackend(servers[0].url, settings.forward), NoPrefix()
    from kvproxy.proxy.fleet.build import build_fleet

    return build_fleet(settings)


def services(request: Request) -> Services:
    """The parts of the app that a request came to."""
    found = request.app.state.services
    assert isinstance(found, Services)
    return found
