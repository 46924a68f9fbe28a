"""kvproxy: a caching reverse proxy for LLMs, with a semantic response cache and an exact prefix block cache.

Programs import the library from here (docs/library.md). Each name is loaded on first use, so that `import kvproxy` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvproxy.analyse.simulate.pool_simulation import ChainRequest, PoolSimulation
    from kvproxy.analyse.simulate.pool_simulation import simulate as simulate_pool
    from kvproxy.analyse.simulate.pool_size_sweep import Sweep, sweep
    from kvproxy.analyse.simulate.trace_reader import TraceError, read_chains
    from kvproxy.blocks.block import KVCacheBlock
    from kvproxy.blocks.block_hash import BlockHasher
    from kvproxy.blocks.block_pool import BlockPool
    from kvproxy.blocks.cache_request import CacheRequest, MMItem
    from kvproxy.blocks.events import AllBlocksCleared, BlockRemoved, BlockStored
    from kvproxy.blocks.eviction.session_policy import CacheUse
    from kvproxy.blocks.manager import ComputedBlocks, KVCacheManager
    from kvproxy.blocks.residency import ResidencyTracker
    from kvproxy.blocks.row_types import PoolStats
    from kvproxy.blocks.single_type_manager import GroupSpec
    from kvproxy.errors import SettingsError
    from kvproxy.index.errors import CacheStoreError, EmbedderError, PluginError
    from kvproxy.index.models.embedder import Embedder
    from kvproxy.index.models.function_embedder import FunctionEmbedder
    from kvproxy.index.policies.guards import Guard
    from kvproxy.index.policies.policy import Decision, Limits, Neighbour, Policy, PolicyResult
    from kvproxy.library import AsyncCache, Cache, CachedAnswer, open_async_cache, open_cache
    from kvproxy.library.cache_stats import CacheStats
    from kvproxy.library.lookup_explanation import LookupExplanation
    from kvproxy.settings.cache import CacheSettings
    from kvproxy.settings.privacy import EncryptionSettings, RedactionSettings

__version__ = "0.1.0"

_MODULES = {
    "blocks.block": ("KVCacheBlock",),
    "blocks.block_hash": ("BlockHasher",),
    "blocks.block_pool": ("BlockPool",),
    "blocks.cache_request": ("CacheRequest", "MMItem"),
    "blocks.events": ("AllBlocksCleared", "BlockRemoved", "BlockStored"),
    "blocks.eviction.session_policy": ("CacheUse",),
    "blocks.manager": ("ComputedBlocks", "KVCacheManager"),
    "blocks.residency": ("ResidencyTracker",),
    "blocks.row_types": ("PoolStats",),
    "blocks.single_type_manager": ("GroupSpec",),
    "errors": ("SettingsError",),
    "index.errors": ("CacheStoreError", "EmbedderError", "PluginError"),
    "index.models.embedder": ("Embedder",),
    "index.models.function_embedder": ("FunctionEmbedder",),
    "index.policies.guards": ("Guard",),
    "index.policies.policy": ("Decision", "Limits", "Neighbour", "Policy", "PolicyResult"),
    "library": ("AsyncCache", "Cache", "CachedAnswer", "open_async_cache", "open_cache"),
    "library.cache_stats": ("CacheStats",),
    "library.lookup_explanation": ("LookupExplanation",),
    "analyse.simulate.pool_simulation": ("ChainRequest", "PoolSimulation", "simulate_pool"),
    "analyse.simulate.pool_size_sweep": ("Sweep", "sweep"),
    "analyse.simulate.trace_reader": ("TraceError", "read_chains"),
    "settings.cache": ("CacheSettings",),
    "settings.privacy": ("EncryptionSettings", "RedactionSettings"),
}
_PLACES = {name: (f"kvproxy.{module}", name) for module, names in _MODULES.items() for name in names}
_PLACES["simulate_pool"] = ("kvproxy.analyse.simulate.pool_simulation", "simulate")

__all__ = [
    "AllBlocksCleared",
    "AsyncCache",
    "BlockHasher",
    "BlockPool",
    "BlockRemoved",
    "BlockStored",
    "Cache",
    "CacheRequest",
    "CacheSettings",
    "CacheStats",
    "CacheStoreError",
    "CacheUse",
    "CachedAnswer",
    "ChainRequest",
    "ComputedBlocks",
    "Decision",
    "Embedder",
    "EmbedderError",
    "EncryptionSettings",
    "FunctionEmbedder",
    "GroupSpec",
    "Guard",
    "KVCacheBlock",
    "KVCacheManager",
    "Limits",
    "LookupExplanation",
    "MMItem",
    "Neighbour",
    "PluginError",
    "Policy",
    "PolicyResult",
    "PoolSimulation",
    "PoolStats",
    "RedactionSettings",
    "ResidencyTracker",
    "SettingsError",
    "Sweep",
    "TraceError",
    "open_async_cache",
    "open_cache",
    "read_chains",
    "simulate_pool",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = _PLACES[name]
    return getattr(import_module(module), there)


def __dir__() -> list[str]:
    return sorted([*(name for name in globals() if name.startswith("__")), *__all__])
