"""How long cached blocks stay and how they are used meanwhile. Blocks that cache nothing do not count."""

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvproxy.blocks.block import Block


@dataclass(frozen=True, slots=True)
class ResidencyStats:
    """Figures over the most recent evictions and hits.

    Attributes:
        evicted: cached blocks given up since the start.
        lifetime: median seconds from being cached to being given up; None before the first eviction.
        idle: median seconds from the last use to being given up; None before the first eviction.
        never_hit: share of evicted blocks that nobody reused, 0 to 1; None before the first eviction.
        reuse_gap: median seconds between two uses of a block; None before the first hit.
    """

    evicted: int
    lifetime: float | None
    idle: float | None
    never_hit: float | None
    reuse_gap: float | None


class Residency:
    """Times of cached blocks by block id.

    Args:
        clock: seconds, ever growing.
        window: evictions, and hits, that the figures look back on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, window: int = 4096) -> None:
        self._clock = clock
        self._cached: dict[int, float] = {}
        self._used: dict[int, float] = {}
        self._hit: set[int] = set()
        self._evictions: deque[tuple[float, float, bool]] = deque(maxlen=window)
        self._gaps: deque[float] = deque(maxlen=window)
        self._evicted = 0

    def stored(self, blocks: Iterable[Block]) -> None:
        """Blocks were cached; those that had been before keep their times."""
        now = self._clock()
        for block in blocks:
            if block.hash is not None and block.id not in self._cached:
                self._cached[block.id] = self._used[block.id] = now

    def touched(self, blocks: Iterable[Block]) -> None:
        """Blocks were hit."""
        now = self._clock()
        for block in blocks:
            if block.id in self._cached:
                self._gaps.append(now - self._used[block.id])
                self._used[block.id] = now
                self._hit.add(block.id)

    def released(self, blocks: Iterable[Block]) -> None:
        """Blocks became idle: the time that they were held is no idleness."""
        now = self._clock()
        for block in blocks:
            if block.id in self._used:
                self._used[block.id] = now

    def evicted(self, blocks: Sequence[Block]) -> None:
        """Cached blocks were given up."""
        now = self._clock()
        for block in blocks:
            used = self._used.pop(block.id)
            self._evictions.append((now - self._cached.pop(block.id), now - used, block.id in self._hit))
            self._hit.discard(block.id)
        self._evicted += len(blocks)

    def cleared(self) -> None:
        """The cache was reset: what it held was not evicted."""
        self._cached.clear()
        self._used.clear()
        self._hit.clear()

    def stats(self) -> ResidencyStats:
        """The figures of this moment."""
        lifetimes, idles, hits = zip(*self._evictions, strict=True) if self._evictions else ((), (), ())
        return ResidencyStats(
            evicted=self._evicted,
            lifetime=statistics.median(lifetimes) if lifetimes else None,
            idle=statistics.median(idles) if idles else None,
            never_hit=1 - sum(hits) / len(hits) if hits else None,
            reuse_gap=statistics.median(self._gaps) if self._gaps else None,
        )
