"""Prefix cache statistics reported by upstreams. `mirrored_prefix.py` adds their blocks."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kvproxy.backends.prefix_cache import EnginePool, PrefixCache, PrefixFigures, no_events
from kvproxy.blocks.rows import PoolReport
from kvproxy.upstreams.engine import FleetEngine
from kvproxy.upstreams.engine_reports.metrics import EngineMetrics
from kvproxy.upstreams.fleet import Fleet

if TYPE_CHECKING:
    from kvproxy.mirror.mirror import Mirror


class ReportedPrefix(PrefixCache):
    """Statistics of the upstreams' prefix caches, without their blocks."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def _mirrors(self) -> "list[tuple[FleetEngine, Mirror]]":
        return [(engine, engine.mirror) for engine in self._fleet.engines.values() if engine.mirror is not None]

    def _reported_pools(self) -> tuple[EnginePool, ...]:
        engines = self._fleet.engines.values()
        return tuple(_engine_pool(engine.url, metrics) for engine in engines if (metrics := engine.metrics()))

    async def figures(self) -> PrefixFigures:
        engines, mirrors = self._fleet.engines.values(), [mirror for _, mirror in self._mirrors()]
        metrics = [engine.metrics() for engine in engines]
        if not mirrors and not any(metrics):
            raise no_events()
        return PrefixFigures(
            _sum_pools([mirror.report() for mirror in mirrors], metrics),
            complete=all(mirror.complete for mirror in mirrors) if mirrors else None,
            streams=tuple(stream for mirror in mirrors for stream in mirror.streams()),
            engines=tuple(self._fleet.engines),
            reported=self._reported_pools(),
        )


def _sum_pools(mirrored: Sequence[PoolReport], metrics: Sequence[EngineMetrics | None]) -> PoolReport:
    """Sum all pools. A sum of reported metrics is None unless every engine reports the metric."""
    blocks, queries, hits = (
        _sum(None if each is None else getattr(each, name) for each in metrics)
        for name in ("num_blocks", "queries", "hits")
    )
    usages = [each.usage for each in metrics if each is not None and each.usage is not None]
    usage = sum(usages) / len(usages) if usages and len(usages) == len(metrics) else None
    sizes = [pool.block_size for pool in mirrored] + [each.block_size for each in metrics if each is not None]
    return PoolReport(
        num_blocks=blocks,
        block_size=next((size for size in sizes if size is not None), None),
        free=None,
        cached=sum(pool.cached or 0 for pool in mirrored) if mirrored else None,
        used=None if usage is None or blocks is None else round(usage * blocks),
        usage=usage,
        queries=queries,
        hits=hits,
        hit_rate=hits / queries if queries and hits is not None else None,
        evictions=sum(pool.evictions or 0 for pool in mirrored) if mirrored else None,
        pinned=None,
        distinct=sum(pool.distinct or 0 for pool in mirrored) if mirrored else None,
    )


def _engine_pool(url: str, metrics: EngineMetrics) -> EnginePool:
    return EnginePool(
        url,
        metrics.num_blocks,
        metrics.usage,
        metrics.running,
        metrics.waiting,
        metrics.queries,
        metrics.hits,
        metrics.age,
    )


def _sum(values: Iterable[int | None]) -> int | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if found and len(known) == len(found) else None
