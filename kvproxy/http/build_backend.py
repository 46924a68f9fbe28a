"""Builds the backend of the settings: the embedded engine, or a fleet of upstreams."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvproxy.backends.admission import Admission
from kvproxy.backends.prefix_cache import PrefixCache
from kvproxy.backends.protocol import Backend
from kvproxy.errors import SettingsError
from kvproxy.privacy.encryption import load_cipher
from kvproxy.settings import Settings

if TYPE_CHECKING:
    from kvproxy.engine.async_llm import AsyncLLM
    from kvproxy.engine.backend import EmbeddedBackend
    from kvproxy.upstreams.fleet import Fleet


@dataclass(frozen=True, slots=True)
class BuiltBackend:
    backend: Backend
    prefix: PrefixCache
    worker: "AsyncLLM | None" = None
    fleet: "Fleet | None" = None
    embedded: "EmbeddedBackend | None" = None


def build_backend(settings: Settings) -> BuiltBackend:
    if not settings.servers:
        return _build_embedded(settings)
    if settings.tiers.enabled:
        raise SettingsError("tiers belong to the embedded engine: remove them, or remove the upstream", param="tiers")
    return _build_fleet(settings)


def _build_embedded(settings: Settings) -> BuiltBackend:
    from kvproxy.engine.async_llm import AsyncLLM
    from kvproxy.engine.backend import EmbeddedBackend, EmbeddedPrefixCache

    cipher = load_cipher(settings.encryption)
    worker = AsyncLLM.load(settings.engine, settings.model, settings.tiers, cipher)
    # The engine's own queue is fair between tenants, so it gets the waiting requests.
    limit = settings.engine.max_num_seqs + settings.limits.queue_size
    backend = EmbeddedBackend(
        worker,
        shared_blocks=settings.cache.shared,
        global_priorities=settings.access.priorities == "all",
        admission=Admission(limit, 0, settings.limits.queue_seconds),
    )
    return BuiltBackend(backend, EmbeddedPrefixCache(backend), worker=worker, embedded=backend)


def _build_fleet(settings: Settings) -> BuiltBackend:
    from kvproxy.upstreams.fleet import Fleet
    from kvproxy.upstreams.fleet_engine import FleetEngine
    from kvproxy.upstreams.fleet_prefix_cache import FleetPrefixCache
    from kvproxy.upstreams.model_routes import find_model_routes
    from kvproxy.upstreams.prompt_tokenizer import load_tokenizer
    from kvproxy.upstreams.reloaded_engines import check_distinct_urls

    check_distinct_urls(settings.servers)
    engines = [FleetEngine(server, settings) for server in settings.servers]
    routes = find_model_routes(settings.servers, settings.routing)
    fleet = Fleet(engines, load_tokenizer(settings.forward.tokenizer), settings.routing, routes)
    return BuiltBackend(fleet, FleetPrefixCache(fleet), fleet=fleet)
