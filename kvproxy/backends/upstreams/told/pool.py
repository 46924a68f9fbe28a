"""The pools of all upstreams together: what their events tell, and what the engines say of themselves."""

from collections.abc import Iterable, Sequence

from kvproxy.backends.prefix import EnginePool
from kvproxy.backends.upstreams.told.figures import EngineFigures
from kvproxy.blocks.rows import PoolFigures


def pool_figures(mirrored: Sequence[PoolFigures], told: Sequence[EngineFigures | None]) -> PoolFigures:
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
    return PoolFigures(
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
