"""Rows and statistics of a prefix cache, for admin routes and commands. A field is None if the cache does not provide it."""

from dataclasses import dataclass, field
from typing import Literal

from kvproxy.blocks.divergence import Divergence
from kvproxy.blocks.residency import ResidencyStats

BlockState = Literal["null", "used", "pinned", "cached", "free"]
"""A cached block that a request uses is `used`; one that only pins hold is `pinned`."""


@dataclass(frozen=True, slots=True)
class BlockLocation:
    engine: str
    rank: int | None = None
    medium: str | None = None
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRow:
    """A block of a pool, or the content of a slot or of a saved slot of llama.cpp. Hashes are hexadecimal."""

    id: int | None = None
    state: BlockState = "cached"
    ref_count: int | None = None
    hash: str | None
    parent: str | None = None  # Hash of the previous block of the prompt.
    computed: bool = True
    num_tokens: int
    last_accessed: int | None = None  # Value of the pool's operation counter.
    priority: int | None = None
    requests: tuple[str, ...] | None = None
    group: int | None = None  # KV cache group; None if the model has one group.
    copies: int | None = None  # Number of physical blocks with this content.
    place: BlockLocation | None = None


@dataclass(frozen=True, slots=True)
class BlockContent:
    block: BlockRow
    tokens: tuple[int, ...] | None
    text: str | None = ""  # None if the engine could not be asked for it.


@dataclass(frozen=True, slots=True)
class PinRow:
    name: str
    blocks: tuple[int, ...]
    seconds_left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRow:
    leaf: str | None  # Hash of the last block, which no cached block follows.
    blocks: tuple[int, ...] | None = None
    num_blocks: int
    num_tokens: int
    complete: bool  # The first block begins a prompt. Otherwise, earlier blocks were evicted.
    in_use: int | None = None  # Number of blocks in use.
    last_accessed: int | None = None
    first_tokens: tuple[int, ...] | None
    first_text: str | None = ""  # None if the engine could not be asked for it.
    place: BlockLocation | None = None


@dataclass(frozen=True, slots=True)
class KVCacheGroupStats:
    number: int
    kind: str  # vLLM's name of the attention type.
    window: int  # See `GroupSpec`.
    used: int  # Number of blocks in block tables.
    cached: int  # Number of cached blocks that are not in use.


@dataclass(frozen=True, slots=True)
class KVCacheGroupMatch:
    number: int
    kind: str
    window: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Statistics of a pool since its start.

    Attributes:
        num_blocks: includes the null block, so it is `free` + `cached` + `used` + `pinned` + 1.
        block_size: tokens.
        free, cached, used, pinned: blocks in each `BlockState`. The next request can use the free and the cached ones, so
            `cached` leaves out cached blocks that requests or pins hold.
        usage: `used` and `pinned` as a share of the blocks, 0 to 1.
        queries: prompt tokens of the admitted requests. As in vLLM, a lookup alone does not count, and a request counts
            once, although it is admitted again after a preemption.
        hits: cached ones of these tokens.
        hit_rate: `hits` / `queries`; 0 without queries.
        evictions: cached blocks whose content was replaced.
    """

    num_blocks: int
    block_size: int
    free: int
    cached: int
    used: int
    pinned: int
    usage: float
    queries: int
    hits: int
    hit_rate: float
    evictions: int


@dataclass(frozen=True, slots=True)
class PoolReport:
    """Statistics of a pool, of a mirror, or of llama.cpp slots."""

    num_blocks: int | None = None
    block_size: int | None = None
    free: int | None = None
    cached: int | None = None
    used: int | None = None
    pinned: int | None = None
    usage: float | None = None
    queries: int | None = None
    hits: int | None = None
    hit_rate: float | None = None
    evictions: int | None = None
    distinct: int | None = None  # Number of cached blocks with different content.
    residency: ResidencyStats | None = None
    block_bytes: int | None = None
    used_bytes: int | None = None
    groups: tuple[KVCacheGroupStats, ...] = ()
    offloaded: dict[str, int] = field(default_factory=dict)  # Number of distinct blocks in each medium besides the GPU.


@dataclass(frozen=True, slots=True)
class PoolMap:
    """The blocks of a pool as columns, for the dashboard."""

    names: list[str] | None  # None if the blocks are named by their indexes.
    states: str  # A letter per block: `u` used, `p` pinned, `c` cached, `f` free, `0` the null block.
    refs: list[int] | None  # `BlockRow.ref_count` of each block.
    used: list[int] | None  # `BlockRow.last_accessed` of each block.
    tenants: list[str] | None
    tenant: list[int] | None  # Index of each block's tenant in `tenants`; -1 for an uncached block.
    queue: list[int] | None  # Indexes of the free blocks in eviction order.


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    prompt_tokens: int
    matched_tokens: int
    blocks: tuple[int, ...]
    divergence: Divergence | None
    groups: tuple[KVCacheGroupMatch, ...] = ()
