"""All doors: the kinds of parts that plugins add, and our own parts by name. docs/contributing.md has a recipe per kind."""

from collections.abc import Callable
from typing import Any

from kvproxy.index.doors import EMBEDDERS, GUARDS, VERIFIERS, Door

COMMAND_PANELS: dict[str, dict[str, str]] = {
    "Run": {
        "serve": "kvproxy.commands.serve:serve",
        "init": "kvproxy.commands.config:init",
        "config": "kvproxy.commands.config:app",
        "doctor": "kvproxy.commands.doctor:doctor",
    },
    "Inspect": {
        "top": "kvproxy.commands.top:top",
        "log": "kvproxy.commands.journal.log:app",
        "explain": "kvproxy.commands.explain:explain",
        "sessions": "kvproxy.commands.journal.sessions:app",
        "savings": "kvproxy.commands.journal.savings:savings",
        "cache": "kvproxy.commands.cache:app",
        "blocks": "kvproxy.commands.blocks:app",
    },
    "Analyse": {
        "estimate": "kvproxy.commands.analyse.estimate:estimate",
        "lint": "kvproxy.commands.analyse.lint:lint",
        "audit": "kvproxy.commands.analyse.audit:audit",
        "simulate": "kvproxy.commands.analyse.simulate:simulate",
        "calibrate": "kvproxy.commands.analyse.calibrate:calibrate",
    },
    "Operate": {
        "warm": "kvproxy.commands.warm:warm",
        "upstreams": "kvproxy.commands.upstreams:app",
        "keys": "kvproxy.commands.keys:app",
        "backup": "kvproxy.commands.backup:backup",
        "restore": "kvproxy.commands.backup:restore",
        "reload": "kvproxy.commands.config:reload",
    },
}
COMMANDS: Door[Callable[..., Any]] = Door(
    "kvproxy.commands", "command", {name: place for panel in COMMAND_PANELS.values() for name, place in panel.items()}
)
"""A function, whose parameters become options, or a `CommandGroup`."""
LAYERS: Door[Callable[..., Any]] = Door("kvproxy.layers", "layer")
"""Creates a `Layer`, given the `PathContext`. The setting `path.layers` names the layers, which precede our own."""
PREPARE: Door[Callable[..., Any]] = Door("kvproxy.prepare", "preparation step")
"""Creates a `Step`, given the `PathContext`. The setting `path.prepare` names the steps, which follow the prompt edits."""
EVICTION: Door[Callable[..., Any]] = Door(
    "kvproxy.eviction",
    "eviction policy",
    {
        "lru": "kvproxy.blocks.eviction.lru:LRU",
        "s3fifo": "kvproxy.blocks.eviction.s3fifo:S3FIFO",
        "sessions": "kvproxy.blocks.eviction.session_policy:SessionPolicy",
    },
)
"""Creates an `EvictionPolicy`, given the number of blocks of the pool. The setting `engine.eviction_policy` names one."""
CHUNK_STORES: Door[Callable[..., Any]] = Door(
    "kvproxy.chunk_stores",
    "chunk store",
    {
        "host": "kvproxy.tiers.local_stores:open_host_store",
        "disk": "kvproxy.tiers.local_stores:open_disk_store",
        "redis": "kvproxy.tiers.redis:open_redis_store",
    },
)
"""Creates a `ChunkStore`, given the `TierSettings` and a function that pins memory (or None).

The setting `tiers.stores` names the ones that follow our own.
"""
UPSTREAMS: Door[Callable[..., Any]] = Door(
    "kvproxy.upstreams", "kind of upstream", {"llama.cpp": "kvproxy.upstreams.llama.kind:LlamaKind"}
)
"""Creates an `UpstreamKind`, given the `UpstreamClient` and the settings. The setting `kind` of an upstream names one."""
LOG_FORMATS: Door[Any] = Door("kvproxy.log_formats", "log format", accepts=lambda part: hasattr(part, "signature"))
"""A `LogFormat`, which is tried before our own."""

DOORS: tuple[Door[Any], ...] = (
    COMMANDS,
    LAYERS,
    PREPARE,
    GUARDS,
    EMBEDDERS,
    VERIFIERS,
    EVICTION,
    CHUNK_STORES,
    UPSTREAMS,
    LOG_FORMATS,
)
