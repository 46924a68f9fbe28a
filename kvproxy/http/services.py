"""What an app is made of, built once from the settings and handed to every route."""

import asyncio
import logging
from dataclasses import dataclass, field

from starlette.requests import Request

from kvproxy.backends.build import Built, build_backend
from kvproxy.backends.prefix import PrefixCache
from kvproxy.errors import SettingsError
from kvproxy.flow.answer import Answerer
from kvproxy.flow.learning.observer import make_observer
from kvproxy.flow.similar import build_semantic
from kvproxy.http.metrics import Metrics
from kvproxy.index.errors import CacheStoreError, EmbedderError, VerifierError
from kvproxy.index.observations import Observations
from kvproxy.index.store import Capacity, open_store
from kvproxy.index.store.opening import open_observations
from kvproxy.settings import Settings

_HOUSEKEEPING = 30.0  # Seconds between two rounds.
_log = logging.getLogger("kvproxy")


@dataclass(frozen=True, slots=True)
class Services:
    """Parts of an app."""

    settings: Settings
    answerer: Answerer
    observations: Observations
    metrics: Metrics
    built: Built
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def prefix(self) -> PrefixCache:
        return self.built.prefix

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
    metrics = Metrics()
    # The engine first: on a GPU its graphs are captured while it loads, and nothing else may allocate there meanwhile.
    built = build_backend(settings)
    if built.worker is not None:
        built.worker.observe = metrics.generated
    try:
        capacity = Capacity(settings.cache.max_entries, settings.cache.max_bytes)
        store = open_store(settings.store_where, capacity=capacity)
        observations = open_observations(settings.store_where)
        semantic = build_semantic(settings, store, observations)
    except (CacheStoreError, EmbedderError, VerifierError) as error:
        raise SettingsError(str(error)) from None
    observer = make_observer(semantic, built.backend, settings.cache) if semantic is not None else None
    answerer = Answerer(built.backend, store, semantic, settings.cache, observer=observer)
    return Services(settings, answerer, observations, metrics, built)


def services(request: Request) -> Services:
    """The parts of the app that a request came to."""
    found: Services = request.app.state.services
    return found
