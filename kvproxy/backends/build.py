"""The backend that the settings ask for, and the view of its prefix cache."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvproxy.backends.admission import Admission
from kvproxy.backends.prefix_cache import PrefixCache
from kvproxy.backends.protocol import Backend
from kvproxy.encryption import load_cipher
from kvproxy.errors import SettingsError
from kvproxy.settings import Settings, UpstreamServer

if TYPE_CHECKING:
    from kvproxy.engine.async_llm import AsyncLLM
    from kvproxy.upstreams.engine import FleetEngine
    from kvproxy.upstreams.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Built:
    """A backend with its prefix cache; `worker` where the embedded engine computes, `fleet` where upstreams do."""

    backend: Backend
    prefix: PrefixCache
    worker: "AsyncLLM | None" = None
    fleet: "Fleet | None" = None


def build_backend(settings: Settings) -> Built:
    """The embedded engine, or the upstreams.

    Raises:
        SettingsError: settings contradict each other, or a tokenizer or tier cannot be used.
        ModelUnsupported: the model cannot be served.
    """
    if not settings.servers:
        return _embedded(settings)
    if settings.tiers.enabled:
        raise SettingsError(
            "tiers keep what the embedded engine computes: leave them out with an upstream", param="tiers"
        )
    return _upstreams(settings)


def _embedded(settings: Settings) -> Built:
    from kvproxy.backends.embedded import EmbeddedBackend
    from kvproxy.backends.embedded_prefix import EmbeddedPrefix
    from kvproxy.engine.async_llm import AsyncLLM

    worker = AsyncLLM.load(
        settings.engine, settings.model, settings.tiers, load_cipher(settings.encryption), settings.data
    )
    # The engine has a line of its own, fair to all tenants: what may wait there comes in, the others are turned away.
    door = Admission(settings.engine.max_sequences + settings.limits.waiting, 0, settings.limits.waiting_seconds)
    ranked = settings.access.priorities == "all"
    backend = EmbeddedBackend(worker, shared=settings.cache.shared, ranked=ranked, door=door)
    return Built(backend, EmbeddedPrefix(backend), worker=worker)


def _upstreams(settings: Settings) -> Built:
    from kvproxy.upstreams.fleet import Fleet
    from kvproxy.upstreams.llama.slot_prefix import SlotPrefix
    from kvproxy.upstreams.mirrored_prefix import MirroredPrefix
    from kvproxy.upstreams.mixed_prefix import MixedPrefix
    from kvproxy.upstreams.prompt_tokenizer import load_tokenizer
    from kvproxy.upstreams.recomputed_pins import UpstreamPins

    engines = [_engine(server, settings) for server in settings.servers]
    if len({engine.url for engine in engines}) < len(engines):
        raise SettingsError(
            "an upstream is named twice: give each once, with a weight if it is faster", param="upstreams"
        )
    fleet = Fleet(engines, load_tokenizer(settings.forward.tokenizer), settings.routing)
    mirrored = any(engine.mirror is not None for engine in engines)
    if not mirrored:
        return Built(fleet, SlotPrefix(fleet), fleet=fleet)
    pins = UpstreamPins(fleet, settings.routing.pinned_tokens_per_minute)
    return Built(fleet, MixedPrefix(MirroredPrefix(fleet, pins), SlotPrefix(fleet)), fleet=fleet)


def _engine(server: UpstreamServer, settings: Settings) -> "FleetEngine":
    from kvproxy.upstreams.engine import FleetEngine
    from kvproxy.upstreams.llama.server import LlamaServer

    engine = FleetEngine(server, settings.forward, settings.routing, settings.limits)
    if engine.mirror is None:
        engine.llama = LlamaServer(engine.upstream, settings.slots, settings.data, load_cipher(settings.encryption))
    return engine
