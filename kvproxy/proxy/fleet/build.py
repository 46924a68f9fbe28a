"""A fleet from the settings."""

from kvproxy.errors import SettingsError
from kvproxy.proxy.fleet.backend import FleetBackend
from kvproxy.proxy.fleet.engine import FleetEngine
from kvproxy.proxy.fleet.prefix import MirroredPrefix
from kvproxy.proxy.prefix import NoPrefix, PrefixView
from kvproxy.proxy.prompts import load_tokenizer
from kvproxy.settings import Settings


def build_fleet(settings: Settings) -> tuple[FleetBackend, PrefixView]:
    """The backend over all upstreams, and the view of what they hold.

    Raises:
        SettingsError: an upstream is named twice, an events endpoint is none, or the tokenizer cannot be loaded.
    """
    engines = [FleetEngine(server, settings.forward, settings.routing) for server in settings.servers]
    if len({engine.url for engine in engines}) < len(engines):
        raise SettingsError(
            "an upstream is named twice: give each once, with a weight if it is faster", param="upstreams"
        )
    tokenizer = load_tokenizer(settings.forward.tokenizer, [engine.backend for engine in engines])
    backend = FleetBackend(engines, tokenizer, settings.routing)
    mirrored = any(engine.mirror is not None for engine in engines)
    return backend, MirroredPrefix(backend) if mirrored else NoPrefix()
