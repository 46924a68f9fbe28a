"""Rows and statistics of a prefix cache for admin routes and commands.

The embedded engine and mirrored engines use the same classes. A field is None if the cache does not provide it: KV events
contain neither block ids, nor reference counts, nor the eviction order.
"""

from dataclasses import dataclass
from typing import Literal

from kvproxy.blocks.residency import ResidencyStats

BlockState = Literal["null", "used", "pinned", "cached", "free"]


@dataclass(frozen=True, slots=True)
class BlockLocation:
    """Location of an external engine's block.

    Attributes:
        engine: the engine's URL.
        rank: its data-parallel rank.
        medium: GPU, CPU, ...
        groups: indexes of the KV cache groups that hold the block; empty if there is one group.
    """

    engine: str
    rank: int | None = None
    medium: str | None = None
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockRow:
    """A block.

    Attributes:
        hash, parent: digests in hexadecimal.
        computed: whether the block is full and computed.
        num_tokens: tokens in the block.
        last_accessed: ordinal of the last use.
        requests: ids of the requests that hold the block.
        group: index of the KV cache group; None if there is one group.
        copies: number of physical blocks with this content, in all groups.
        place: location of a mirrored block.
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
    """A block with its token ids, if known, and their text."""

    block: BlockRow
    tokens: tuple[int, ...] | None
    text: str = ""


@dataclass(frozen=True, slots=True)
class PinRow:
    """A pin.

    Attributes:
        blocks: ids of its blocks in the embedded engine's pool.
        seconds_left: remaining lifetime; None for a pin without expiry.
    """

    name: str
    blocks: tuple[int, ...]
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class ChainRow:
    """A cached chain from its first block to a leaf.

    Attributes:
        leaf: the leaf's hash in hexadecimal.
        blocks: ids of its blocks in chain order.
        complete: whether its first block is the start of a prompt.
        in_use: number of blocks in use.
        last_accessed: ordinal of the leaf's last use.
        first_tokens: token ids of its first block.
        first_text: text of its first block.
        place: location of a mirrored chain.
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
        kind: the attention type.
        reach: tokens of the window or chunk; 0 for full attention.
        used: blocks held by requests.
        cached: idle cached blocks.
    """

    number: int
    kind: str
    reach: int
    used: int
    cached: int


@dataclass(frozen=True, slots=True)
class GroupMatch:
    """Prompt tokens that one KV cache group could reuse alone."""

    number: int
    kind: str
    reach: int
    tokens: int


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


@dataclass(frozen=True, slots=True)
class PoolReport:
    """Statistics of a pool; see `PoolStats` for the common fields.

    Attributes:
        pinned: blocks held by pins.
        distinct: cached blocks without copies.
        block_bytes, used_bytes: memory of a block, and of the used blocks.
        groups: KV cache groups, if the model has several or limited attention.
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
        cached: the chain's tokens from there to the end of its block.
        prompt: the prompt's tokens at the same positions.
        before: the last common tokens.
    """

    position: int
    cached: tuple[int, ...]
    prompt: tuple[int, ...]
    before: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The cached prefix of a prompt in the embedded engine's pool.

    Attributes:
        prompt_tokens: length of the prompt.
        matched_tokens: length of the cached prefix.
        blocks: ids of the cached blocks.
        divergence: the first difference from the closest cached chain.
        groups: matches of each KV cache group, if the model has several or limited attention.
    """

    prompt_tokens: int
    matched_tokens: int
    blocks: tuple[int, ...]
    divergence: Divergence | None
    groups: tuple[GroupMatch, ...] = ()
