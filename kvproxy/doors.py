"""All doors: the kinds of parts that plugins add, and our own parts by name. docs/contributing.md has a recipe per kind."""

from collections.abc import Callable
from typing import Any

from kvproxy.index.doors import EMBEDDERS, GUARDS, VERIFIERS, Door

COMMAND_PANELS: dict[str, dict[str, tuple[str, str]]] = {
    "Run": {
        "serve": ("kvproxy.commands.serve:serve", "Run the proxy with a model, or in front of upstreams."),
        "init": ("kvproxy.commands.config:init", "Write a commented kvproxy.toml with all settings."),
        "config": ("kvproxy.commands.config:app", "Check the settings, or show where each comes from."),
        "doctor": ("kvproxy.commands.doctor:doctor", "Check the installation, the model and the upstreams."),
    },
    "Inspect": {
        "ask": ("kvproxy.commands.ask:ask", "Send a request, and print its Cache-Status and the answer."),
        "top": ("kvproxy.commands.top:top", "Watch requests, hit rates, the block pool and upstreams."),
        "log": ("kvproxy.commands.journal.log:app", "List requests, and how each was answered."),
        "explain": ("kvproxy.commands.explain:explain", "Explain which layer would answer a request, and why."),
        "sessions": ("kvproxy.commands.journal.sessions:app", "List sessions and their reused and lost tokens."),
        "savings": (
            "kvproxy.commands.journal.savings:savings",
            "Sum the tokens, seconds and money saved by all caches.",
        ),
        "cache": ("kvproxy.commands.cache:app", "List, show, remove and export stored responses."),
        "blocks": ("kvproxy.commands.blocks:app", "Inspect the prefix cache: blocks, chains, pins and tiers."),
    },
    "Analyse": {
        "estimate": ("kvproxy.commands.analyse.estimate:estimate", "Estimate from a log what caching would save."),
        "lint": ("kvproxy.commands.analyse.lint:lint", "Find text that prevents prompts from sharing blocks."),
        "audit": (
            "kvproxy.commands.analyse.audit:audit",
            "Check that an engine's prefix cache changes no response.",
        ),
        "simulate": (
            "kvproxy.commands.analyse.simulate:simulate",
            "Replay a trace to size a pool, its tiers, or a fleet.",
        ),
        "calibrate": (
            "kvproxy.commands.analyse.calibrate:calibrate",
            "Measure semantic policies on your own questions.",
        ),
    },
    "Operate": {
        "warm": ("kvproxy.commands.warm:warm", "Fill both caches from prompts, logs or another cache."),
        "upstreams": ("kvproxy.commands.upstreams:app", "List upstreams, and drain one for maintenance."),
        "keys": ("kvproxy.commands.keys:app", "Manage clients and their API keys."),
        "prices": ("kvproxy.commands.prices:app", "List, show, or update the prices of paid APIs."),
        "backup": ("kvproxy.commands.backup:backup", "Save responses, journal, clients and settings to a file."),
        "restore": ("kvproxy.commands.backup:restore", "Restore a backup to a data folder that no proxy uses."),
        "reload": ("kvproxy.commands.config:reload", "Reload rules, clients, prices, and upstreams of a proxy."),
    },
}
"""Place and summary of each command. The summary is the first line of its help, which `--help` prints without imports."""
COMMANDS: Door[Callable[..., Any]] = Door(
    "kvproxy.commands",
    "command",
    {name: place for panel in COMMAND_PANELS.values() for name, (place, _) in panel.items()},
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
    "kvproxy.upstreams",
    "kind of upstream",
    {"llama.cpp": "kvproxy.upstreams.llama.kind:LlamaKind", "demo": "kvproxy.upstreams.demo_server:DemoServer"},
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
