"""Rows and statistics of a prefix cache, for admin routes and commands. A field is None if the cache does not provide it."""

from dataclasses import dataclass
from typing import Literal

from kvproxy.blocks.residency import ResidencyStats

BlockState = Literal["null", "used", "pinned", "cached", "free"]


@dataclass(frozen=True, slots=True)
class BlockLocation:
    engine: str
    rank: int | None = None
    medium: str | None = None
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRow:
    """A block of a pool, or the content of a slot or of a saved slot of llama.cpp.

    Attributes:
        parent: hash of the previous block of the prompt. Hashes are hexadecimal.
        last_accessed: value of the pool's operation counter at the last use.
        group: index of the KV cache group; None if the model has one group.
        copies: number of physical blocks with this content.
    """

    id: int | None = None
    state: BlockState = "cached"
    ref_count: int | None = None
    hash: str | None
    parent: str | None = None
    computed: bool = True
    num_tokens: int
    last_accessed: int | None = None
    priority: int | None = None
    requests: tuple[str, ...] | None = None
    group: int | None = None
    copies: int | None = None
    place: BlockLocation | None = None


@dataclass(frozen=True, slots=True)
class BlockContent:
    block: BlockRow
    tokens: tuple[int, ...] | None
    text: str = ""


@dataclass(frozen=True, slots=True)
class PinRow:
    name: str
    blocks: tuple[int, ...]
    seconds_left: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainRow:
    """A chain of cached blocks.

    Attributes:
        leaf: hash of the last block, which no cached block follows.
        complete: the first block begins a prompt; otherwise, earlier blocks were evicted.
    """

    leaf: str | None
    blocks: tuple[int, ...] | None = None
    num_blocks: int
    num_tokens: int
    complete: bool
    in_use: int | None = None
    last_accessed: int | None = None
    first_tokens: tuple[int, ...] | None
    first_text: str = ""
    place: BlockLocation | None = None


@dataclass(frozen=True, slots=True)
class GroupStats:
    """Numbers of a KV cache group's blocks: `used` are in block tables, `cached` are cached and not in use.

    `kind` is vLLM's name of the attention type. See `GroupSpec` for `window`.
    """

    number: int
    kind: str
    window: int
    used: int
    cached: int


@dataclass(frozen=True, slots=True)
class GroupMatch:
    number: int
    kind: str
    window: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Statistics of a pool.

    Attributes:
        num_blocks: includes the null block.
        cached: number of cached blocks that are not in use; `free` includes them.
        usage: share of the blocks in use, 0 to 1.
        queries, hits: number of prompt tokens looked up, and of those found, since the start.
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


@dataclass(frozen=True, slots=True)
class PoolReport:
    """Statistics of a pool, of a mirror, or of llama.cpp slots; see `PoolStats`.

    Attributes:
        distinct: number of cached blocks with different content.
    """

    num_blocks: int | None = None
    block_size: int | None = None
    free: int | None = None
    cached: int | None = None
    used: int | None = None
    usage: float | None = None
    queries: int | None = None
    hits: int | None = None
    hit_rate: float | None = None
    evictions: int | None = None
    pinned: int | None = None
    distinct: int | None = None
    residency: ResidencyStats | None = None
    block_bytes: int | None = None
    used_bytes: int | None = None
    groups: tuple[GroupStats, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolMap:
    """The blocks of a pool as columns, for the dashboard.

    Attributes:
        names: name of each block; None if the blocks are named by their indexes.
        states: a letter per block: `u` used, `p` pinned, `c` cached, `f` free, `0` the null block.
        refs, used: `BlockRow.ref_count` and `BlockRow.last_accessed` of each block.
        tenant: index of each block's tenant in `tenants`; -1 for an uncached block.
        queue: indexes of the free blocks in eviction order.
    """

    names: list[str] | None
    states: str
    refs: list[int] | None
    used: list[int] | None
    tenants: list[str] | None
    tenant: list[int] | None
    queue: list[int] | None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between a prompt and the most similar cached chain.

    Attributes:
        position: index of the first different token.
        cached, prompt: tokens of the chain and of the prompt, from `position` to the end of the block.
        before: the last common tokens before `position`.
    """

    position: int
    cached: tuple[int, ...]
    prompt: tuple[int, ...]
    before: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    prompt_tokens: int
    matched_tokens: int
    blocks: tuple[int, ...]
    divergence: Divergence | None
    groups: tuple[GroupMatch, ...] = ()
