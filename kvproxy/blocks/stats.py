"""Statistics of a block pool and of its lookups."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Statistics of a pool.

    Attributes:
        num_blocks: physical blocks, including the null block.
        block_size: tokens in a block.
        free: blocks that can be allocated, including cached idle ones.
        cached: idle blocks in the cache.
        used: blocks in use by live requests.
        usage: share of the pool in use, 0 to 1.
        queries, hits: prompt tokens looked up and found since the start.
        hit_rate: hits over queries; 0 before the first query.
        evictions: cached blocks evicted since the start.
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


class PrefixCacheStats:
    """Prompt tokens looked up and found."""

    def __init__(self) -> None:
        self.queries = 0
        self.hits = 0

    def record(self, queries: int, hits: int) -> None:
        self.queries += queries
        self.hits += hits

    @property
    def hit_rate(self) -> float:
        return self.hits / self.queries if self.queries else 0.0
