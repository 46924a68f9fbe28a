"""Rows and statistics of a prefix cache, embedded or mirrored, for admin routes and commands.

A field is None if the cache does not provide it, for example because KV events do not contain it.
"""

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


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A block; hashes are hexadecimal.

    Attributes:
        last_accessed: ordinal of the last use.
        group: index of the KV cache group; None if there is one group.
        copies: number of physical blocks with this content, in all groups.
    """

    id: int | None
    state: BlockState
    ref_count: int | None
    hash: str | None
    parent: str | None
    computed: bool
    num_tokens: int
    last_accessed: int | None
    priority: int | None
    requests: tuple[str, ...] | None
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


@dataclass(frozen=True, slots=True)
class ChainRow:
    """A cached chain, from its first block that is still cached to a block without a successor (`leaf`).

    Attributes:
        complete: the first block is the start of a prompt.
        in_use: number of blocks in use.
    """

    leaf: str | None
    blocks: tuple[int, ...] | None
    num_blocks: int
    num_tokens: int
    complete: bool
    in_use: int | None
    last_accessed: int | None
    first_tokens: tuple[int, ...] | None
    first_text: str = ""
    place: BlockLocation | None = None


@dataclass(frozen=True, slots=True)
class GroupStats:
    """A KV cache group's share of the pool.

    Attributes:
        kind: attention type.
        reach: sliding window or chunk in tokens; 0 for full attention.
        cached: number of cached blocks that are not in use.
    """

    number: int
    kind: str
    reach: int
    used: int
    cached: int


@dataclass(frozen=True, slots=True)
class GroupMatch:
    number: int
    kind: str
    reach: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Statistics of a pool.

    Attributes:
        num_blocks: includes the null block.
        cached: idle blocks in the cache.
        usage: share of the pool in use, 0 to 1.
        queries, hits: prompt tokens looked up and found since the start.
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
    """Statistics of a pool; see `PoolStats`.

    Attributes:
        distinct: number of different cached blocks, if a pool holds several copies of a block.
    """

    num_blocks: int | None
    block_size: int | None
    free: int | None
    cached: int | None
    used: int | None
    usage: float | None
    queries: int | None
    hits: int | None
    hit_rate: float | None
    evictions: int | None
    pinned: int | None
    distinct: int | None = None
    residency: ResidencyStats | None = None
    block_bytes: int | None = None
    used_bytes: int | None = None
    groups: tuple[GroupStats, ...] = ()


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between a prompt and the closest cached chain.

    Attributes:
        position: index of the first different token.
        cached, prompt: tokens from `position` to the end of the block.
        before: the last common tokens.
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
