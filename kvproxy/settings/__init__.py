"""The configuration: one file per section; `tree.py` reads them all."""

from kvproxy.settings.cache import LEAST_SIMILARITY, CacheSettings
from kvproxy.settings.engine import EngineSettings, TierSettings
from kvproxy.settings.privacy import EncryptionSettings, RedactionSettings
from kvproxy.settings.tree import Settings, load_settings
from kvproxy.settings.upstreams import RoutingSettings, UpstreamServer, UpstreamSettings

__all__ = [
    "LEAST_SIMILARITY",
    "CacheSettings",
    "EncryptionSettings",
    "EngineSettings",
    "RedactionSettings",
    "RoutingSettings",
    "Settings",
    "TierSettings",
    "UpstreamServer",
    "UpstreamSettings",
    "load_settings",
]
