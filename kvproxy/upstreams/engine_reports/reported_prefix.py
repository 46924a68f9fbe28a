"""Upstreams' prefix caches as far as they tell of them in figures; their blocks are in `mirrored_prefix.py`."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kvproxy.backends.prefix_cache import EnginePool, NoPrefix, PrefixFigures
from kvproxy.blocks.rows import PoolReport
from kvproxy.upstreams.engine import FleetEngine
from kvproxy.upstreams.engine_reports.metrics import EngineFigures
from kvproxy.upstreams.fleet import Fleet

if TYPE_CHECKING:
    from kvproxy.mirror.mirror import Mirror


def pool_figures(mirrored: Sequence[PoolReport], told: Sequence[EngineFigures | None]) -> PoolReport:
    """One pool out of all.

    Args:
        mirrored: pools of the engines that publish events.
        told: what each engine says of itself. A sum is known only where all of them tell its parts.
    """
    known = [figures for figures in told if figures is not None]
    all_told = bool(known) and len(known) == len(told)
    blocks = _sum(figures.num_blocks for figures in known) if all_told else None
    usages = [figures.usage for figures in known if figures.usage is not None]
    usage = sum(usages) / len(usages) if all_told and len(usages) == len(known) else None
    queries = _sum(figures.queries for figures in known) if all_told else None
    hits = _sum(figures.hits for figures in known) if all_told else None
    sizes = [pool.block_size for pool in mirrored] + [figures.block_size for figures in known]
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


def engine_pool(url: str, figures: EngineFigures) -> EnginePool:
    """One engine's own figures as they are shown."""
    return EnginePool(
        url,
        figures.num_blocks,
        figures.usage,
        figures.running,
        figures.waiting,
        figures.queries,
        figures.hits,
        figures.age,
    )


def _sum(values: Iterable[int | None]) -> int | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if found and len(known) == len(found) else None


class ToldPrefix(NoPrefix):
    """See `PrefixCache`. What nobody tells is refused, and the way out named."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def _mirrors(self) -> "list[tuple[FleetEngine, Mirror]]":
        return [(engine, engine.mirror) for engine in self._fleet.engines.values() if engine.mirror is not None]

    async def figures(self) -> PrefixFigures:
        mirrors, engines = self._mirrors(), list(self._fleet.engines.values())
        told = [(engine.url, engine.figures()) for engine in engines]
        pools = [mirror.figures() for _, mirror in mirrors]
        if not pools and not any(figures for _, figures in told):
            raise self._refuse()
        return PrefixFigures(
            pool_figures(pools, [figures for _, figures in told]),
            complete=all(mirror.complete for _, mirror in mirrors) if mirrors else None,
            streams=tuple(stream for _, mirror in mirrors for stream in mirror.streams()),
            engines=tuple(engine.url for engine in engines),
            told=tuple(engine_pool(url, figures) for url, figures in told if figures is not None),
        )
