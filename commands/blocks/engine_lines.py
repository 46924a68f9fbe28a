"""Describes engines, groups of layers, and tiers in one line each."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvproxy.apis.api_request import PUBLIC_TENANT
from kvproxy.commands.formatting import percent
from kvproxy.units import format_bytes, plural, tenant_name

if TYPE_CHECKING:
    from kvproxy.backends.reports import EngineMetrics, PrefixCacheStats
    from kvproxy.blocks.row_types import KVCacheGroupStats
    from kvproxy.tiers.chunk_store import TierStats

_MAX_PAIRS = 10


def prefix_hits(stats: "PrefixCacheStats") -> str:
    """Describe the hits of the pool and of the tiers."""
    rate = "-" if stats.hit_rate is None else percent(stats.hit_rate)
    line = f"{rate} ({stats.hits:,} of {stats.queries:,} prompt tokens)"
    if stats.tier_hits is None:
        return line
    total = "" if stats.reuse_rate is None else f", {percent(stats.reuse_rate)} in all"
    return f"{line}, plus {stats.tier_hits:,} tokens from tiers{total}"


def tier_line(tier: "TierStats") -> str:
    size = format_bytes(tier.bytes)
    line = f"{tier.name}: {tier.chunks:,} chunks, {size}, {tier.hits:,} hits, {tier.tokens_loaded:,} tokens loaded"
    if tier.failure is not None:
        return f"{line}, fails: {tier.failure}"
    return line if tier.available else f"{line}, paused after a failure"


def away_lines(stats: "PrefixCacheStats") -> list[str]:
    """Name the upstreams that do not respond."""
    return [
        f"{url} does not respond, and loses its prefix cache if it ended: {error}" for url, error in stats.away.items()
    ]


def eviction_lines(stats: "PrefixCacheStats") -> list[str]:
    """Say whose blocks the requests of which tenants evicted, if several tenants use the pool."""
    pairs = stats.residency.by_client if stats.residency is not None else ()
    if all(pair.owner == pair.evictor == pairs[0].owner for pair in pairs):
        return []

    def name(tenant: str | None) -> str:
        return tenant_name(tenant or PUBLIC_TENANT)

    lines = [
        f"{name(pair.evictor)} evicted {plural(pair.blocks, 'block')} of {name(pair.owner)}"
        for pair in pairs[:_MAX_PAIRS]
    ]
    hidden = len(pairs) - len(lines)
    return [*lines, f"{plural(hidden, 'further pair')} of tenants: see --json"] if hidden else lines


def layer_group_lines(groups: "Iterable[KVCacheGroupStats]") -> list[str]:
    return [
        f"{layer_group_name(group.number, group.kind, group.window)}: {plural(group.used, 'block')} used,"
        f" {group.cached:,} cached"
        for group in groups
    ]


def layer_group_name(number: int, kind: str, window: int) -> str:
    """Name a group of layers; `window` is in tokens, or 0 for full attention."""
    size = f" of {window:,} tokens" if window else ""
    return f"group {number}, {kind.replace('_', ' ')}{size}"


def engine_line(engine: "EngineMetrics") -> str:
    parts = []
    if engine.usage is not None:
        of = "" if engine.num_blocks is None else f" of {engine.num_blocks:,} blocks"
        parts.append(f"{percent(engine.usage)}{of} in use")
    if engine.running is not None:
        parts.append(f"{engine.running:,} running")
    if engine.waiting is not None:
        parts.append(f"{engine.waiting:,} waiting")
    if engine.queries:
        hits = engine.hits or 0
        parts.append(f"{hits:,} of {engine.queries:,} prompt tokens reused ({percent(hits / engine.queries)})")
    return f"{engine.engine} reports {', '.join(parts)}, {engine.age:.0f} s ago"
