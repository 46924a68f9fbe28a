"""Upstreams' prefix caches as far as they tell of them in figures; their blocks are in `mirrored_prefix.py`."""

from typing import TYPE_CHECKING

from kvproxy.backends.prefix import NoPrefix, PrefixFigures
from kvproxy.backends.upstreams.engine import FleetEngine
from kvproxy.backends.upstreams.fleet import Fleet
from kvproxy.backends.upstreams.told.pool import engine_pool, pool_figures

if TYPE_CHECKING:
    from kvproxy.mirror.mirror import Mirror


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
