"""Figures of a pool: what it holds now, and how lookups fared."""

from dataclasses import dataclass

from kvproxy.blocks.pool import BlockPool


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A pool at one moment.

    Attributes:
        num_blocks: physical blocks, the null block included.
        block_size: tokens in a block.
        free: blocks that can be allocated, cached idle ones included.
        cached: idle blocks that still cache something.
        used: blocks that live requests hold.
        usage: share of the pool in use, 0 to 1.
        queries, hits: prompt tokens looked up and found since the start.
        hit_rate: hits over queries, 0 before the first query.
        evictions: cached blocks overwritten since the start.
    """

    num_blocks: int
    block_size: int
    free: int
    cached: int
    used: int
    usage: float
    queries: int
    hits: int
    hit_rate: float
    evictions: int


class LookupStats:
    """Tokens looked up and found."""

    def __init__(self) -> None:
        self.queries = 0
        self.hits = 0
        self.requests = 0

    def record(self, queries: int, hits: int) -> None:
        """Count one request of `queries` prompt tokens of which `hits` were found."""
        self.queries += queries
        self.hits += hits
        self.requests += 1

    @property
    def hit_rate(self) -> float:
        """Share of all tokens looked up that were found."""
        return self.hits / self.queries if self.queries else 0.0


def pool_stats(pool: BlockPool, block_size: int, lookups: LookupStats) -> PoolStats:
    """The figures of this moment. Counts idle cached blocks, so it costs a walk over the pool."""
    return PoolStats(
        num_blocks=pool.num_blocks,
        block_size=block_size,
        free=pool.num_free,
        cached=sum(1 for block in pool.blocks if block.hash is not None and block.ref_count == 0),
        used=pool.num_blocks - 1 - pool.num_free,
        usage=pool.usage,
        queries=lookups.queries,
        hits=lookups.hits,
        hit_rate=lookups.hit_rate,
        evictions=pool.evictions,
    )
