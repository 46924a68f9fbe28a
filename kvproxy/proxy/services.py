"""What an app is made of, built once from the settings and handed to every route."""

from dataclasses import dataclass

from starlette.requests import Request

from index.errors import CacheStoreError, EmbedderError, VerifierError
from index.observations import Observations, SqliteObservations
from index.store import ResponseStore
from kvproxy.engine.worker import EngineWorker
from kvproxy.errors import SettingsError
from kvproxy.proxy.answer import Answerer
from kvproxy.proxy.backend import Backend
from kvproxy.proxy.local import LocalBackend
from kvproxy.proxy.metrics import Metrics
from kvproxy.proxy.observer import make_observer
from kvproxy.proxy.prefix import EmbeddedPrefix, NoPrefix, PrefixView
from kvproxy.proxy.semantic import build_semantic
from kvproxy.proxy.upstream import UpstreamBackend
from kvproxy.settings import Settings


@dataclass(frozen=True, slots=True)
class Services:
    """Parts of an app; `worker` is None where an upstream computes."""

    settings: Settings
    answerer: Answerer
    observations: Observations
    metrics: Metrics
    worker: EngineWorker | None
    prefix: PrefixView

    async def start(self) -> None:
        await self.answerer.backend.start()

    async def close(self) -> None:
        await self.answerer.flights.close()
        if self.answerer.observer is not None:
            await self.answerer.observer.close()
        await self.answerer.backend.close()
        self.observations.close()
        self.answerer.store.close()


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
        store = ResponseStore(settings.store_path)
        observations = SqliteObservations(settings.store_path)
        semantic = build_semantic(settings, store, observations)
    except (CacheStoreError, EmbedderError, VerifierError) as error:
        raise SettingsError(str(error)) from None
    metrics = Metrics()
    worker = None if settings.servers else EngineWorker.load(settings.engine, settings.model, settings.tiers)
    backend, prefix = _local(worker, metrics) if worker else _upstreams(settings)
    observer = make_observer(semantic, backend, settings.cache) if semantic is not None else None
    answerer = Answerer(backend, store, semantic, settings.cache, observer=observer)
    return Services(settings, answerer, observations, metrics, worker, prefix)


def _local(worker: EngineWorker, metrics: Metrics) -> tuple[Backend, PrefixView]:
    backend = LocalBackend(worker, metrics.generated)
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
