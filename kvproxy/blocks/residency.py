"""Measures how long blocks stay in the pool, and how soon they are used again."""

import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvproxy.blocks.block import KVCacheBlock
from kvproxy.blocks.cache_request import CacheRequest

_WINDOW = 4096
_MAX_PAIRS = 1000


@dataclass(frozen=True, slots=True)
class ClientEvictions:
    """Blocks of one client that requests of a client evicted; None is a client without a name."""

    owner: str | None  # The client whose request cached the blocks.
    evictor: str | None
    blocks: int


@dataclass(frozen=True, slots=True)
class ResidencyStats:
    """Statistics of the last 4,096 evictions and of the last 4,096 hits of blocks; None before the first one."""

    evicted: int  # Number of evictions since the start.
    lifetime: float | None  # Median seconds from caching to eviction.
    idle: float | None  # Median seconds from the last use to eviction.
    never_hit: float | None  # Share of evicted blocks without a hit, 0 to 1.
    reuse_gap: float | None  # Median seconds between two uses of a block.
    by_client: tuple[ClientEvictions, ...] = ()  # Since the start, the most blocks first; of the first 1,000 pairs.


class ResidencyTracker:
    """Measures the blocks of one manager; `stats` returns the results. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cached_at: dict[int, float] = {}
        self._used_at: dict[int, float] = {}
        self._hit: set[int] = set()
        self._evictions: deque[tuple[float, float, bool]] = deque(maxlen=_WINDOW)
        self._gaps: deque[float] = deque(maxlen=_WINDOW)
        self._num_evicted = 0
        self._by_client = Counter[tuple[str | None, str | None]]()

    def on_stored(self, blocks: Iterable[KVCacheBlock]) -> None:
        now = self._clock()
        for block in blocks:
            if block.hash is not None and block.id not in self._cached_at:
                self._cached_at[block.id] = self._used_at[block.id] = now

    def on_hit(self, blocks: Iterable[KVCacheBlock]) -> None:
        now = self._clock()
        for block in blocks:
            if block.id in self._cached_at:
                self._gaps.append(now - self._used_at[block.id])
                self._used_at[block.id] = now
                self._hit.add(block.id)

    def on_freed(self, blocks: Iterable[KVCacheBlock]) -> None:
        now = self._clock()
        for block in blocks:
            if block.id in self._used_at:
                self._used_at[block.id] = now

    def on_evicted(self, blocks: Sequence[KVCacheBlock], request: CacheRequest | None = None) -> None:
        """Record evicted blocks. `request` takes them; None if they were removed."""
        now = self._clock()
        for block in blocks:
            if request is not None and block.source is not None:
                pair = (block.source[0].client, request.client)
                if pair in self._by_client or len(self._by_client) < _MAX_PAIRS:
                    self._by_client[pair] += 1
            used_at = self._used_at.pop(block.id)
            self._evictions.append((now - self._cached_at.pop(block.id), now - used_at, block.id in self._hit))
            self._hit.discard(block.id)
        self._num_evicted += len(blocks)

    def on_reset(self) -> None:
        self._cached_at.clear()
        self._used_at.clear()
        self._hit.clear()

    def stats(self) -> ResidencyStats:
        lifetimes, idles, hits = zip(*self._evictions, strict=True) if self._evictions else ((), (), ())
        return ResidencyStats(
            evicted=self._num_evicted,
            lifetime=statistics.median(lifetimes) if lifetimes else None,
            idle=statistics.median(idles) if idles else None,
            never_hit=1 - sum(hits) / len(hits) if hits else None,
            reuse_gap=statistics.median(self._gaps) if self._gaps else None,
            by_client=tuple(ClientEvictions(*pair, count) for pair, count in self._by_client.most_common()),
        )
