"""Prefix cache statistics reported by upstreams. `mirrored_prefix.py` adds their blocks."""

from collections.abc import Sequence

from kvproxy.backends.prefix_cache import EngineMetrics, PrefixCache, PrefixFigures, no_events
from kvproxy.blocks.rows import PoolReport
from kvproxy.upstreams.fleet import Fleet


class ReportedPrefix(PrefixCache):
    """Statistics of the upstreams' prefix caches, without their blocks."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def _reported_metrics(self) -> tuple[EngineMetrics, ...]:
        return tuple(metrics for engine in self._fleet.engines.values() if (metrics := engine.metrics()))

    async def figures(self) -> PrefixFigures:
        mirrors, metrics = [mirror for _, mirror in self._fleet.mirrored()], self._reported_metrics()
        if not mirrors and not metrics:
            raise no_events()
        return PrefixFigures(
            _sum_pools([mirror.report() for mirror in mirrors], metrics, len(self._fleet.engines)),
            complete=all(mirror.complete for mirror in mirrors) if mirrors else None,
            streams=tuple(stream for mirror in mirrors for stream in mirror.streams()),
            engines=tuple(self._fleet.engines),
            reported=metrics,
        )


def _sum_pools(mirrored: Sequence[PoolReport], metrics: Sequence[EngineMetrics], num_engines: int) -> PoolReport:
    """Sum all pools. A sum of reported metrics is None unless every engine reports the metric."""

    def values(name: str) -> list[float] | None:
        found = [value for each in metrics if (value := getattr(each, name)) is not None]
        return found if len(found) == num_engines else None

    def total(name: str) -> int | None:
        found = values(name)
        return None if found is None else round(sum(found))

    def count(name: str) -> int | None:
        return sum(getattr(pool, name) or 0 for pool in mirrored) if mirrored else None

    blocks, queries, hits, usages = total("num_blocks"), total("queries"), total("hits"), values("usage")
    usage = None if usages is None else sum(usages) / len(usages)
    sizes = [pool.block_size for pool in mirrored] + [each.block_size for each in metrics]
    return PoolReport(
        num_blocks=blocks,
        block_size=next((size for size in sizes if size is not None), None),
        free=None,
        cached=count("cached"),
        used=None if usage is None or blocks is None else round(usage * blocks),
        usage=usage,
        queries=queries,
        hits=hits,
        hit_rate=hits / queries if queries and hits is not None else None,
        evictions=count("evictions"),
        pinned=None,
        distinct=count("distinct"),
    )
