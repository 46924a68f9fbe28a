"""What is shown of a prefix cache: the embedded engine's own, or one that is mirrored from an engine's events.

Both fill the same classes. A field is None where that cache cannot tell: an engine publishes neither the ids of its
blocks, nor who holds them, nor its order of eviction.
"""

from dataclasses import dataclass
from typing import Literal

from kvproxy.blocks.residency import ResidencyStats

BlockState = Literal["null", "used", "pinned", "cached", "free"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block of an external engine lies.

    Attributes:
        engine: the engine's URL.
        rank: its data-parallel rank; None where it does not tell.
        medium: GPU, CPU, ...
        groups: numbers of the attention groups that hold it; empty where the engine has one.
    """

    engine: str
    rank: int | None = None
    medium: str | None = None
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockRow:
    """One block.

    Attributes:
        hash, parent: digests in hexadecimal; None where the block caches nothing, or begins a chain.
        computed: whether its keys and values are there.
        num_tokens: tokens that it holds.
        last_accessed: ordinal of the block's last use.
        requests: ids of the requests that hold it.
        group: number of the attention group whose layers the block holds, once that is known; None where there is one.
        copies: physical blocks with this content, in all groups.
        place: where it lies, for a mirrored block.
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
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class BlockContent:
    """One block with what it holds: token ids, None where they are unknown, and their text."""

    block: BlockRow
    tokens: tuple[int, ...] | None
    text: str = ""


@dataclass(frozen=True, slots=True)
class PinRow:
    """A pin.

    Attributes:
        blocks: ids of the blocks that it holds, in the embedded engine's pool.
        seconds_left: None for a pin without end.
        tokens: tokens that are to be held, in front of an upstream.
        held: how many of them it holds now.
        computed: prompt tokens that were computed again for it, since it was made.
        error: what stands in the way.
    """

    name: str
    blocks: tuple[int, ...]
    seconds_left: float | None
    tokens: int | None = None
    held: int | None = None
    computed: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ChainRow:
    """A cached chain from its first block to a leaf.

    Attributes:
        leaf: the leaf's digest in hexadecimal.
        blocks: ids of its blocks, the first block first.
        complete: whether its first block begins a prompt.
        in_use: how many of its blocks are held.
        last_accessed: ordinal of the leaf's last use.
        first_tokens: token ids of its first block.
        begins: their text.
        place: where it lies, for a mirrored chain.
    """

    leaf: str | None
    blocks: tuple[int, ...] | None
    num_blocks: int
    num_tokens: int
    complete: bool
    in_use: int | None
    last_accessed: int | None
    first_tokens: tuple[int, ...] | None
    begins: str = ""
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """An attention group's share of the pool.

    Attributes:
        kind, reach: how far its attention reaches; `reach` is the tokens of the window or chunk, 0 for full attention.
        used, cached: blocks that requests hold, and idle ones that cache something.
    """

    number: int
    kind: str
    reach: int
    used: int
    cached: int


@dataclass(frozen=True, slots=True)
class GroupMatch:
    """What one attention group alone could reuse of a prompt; what all of them can is the least that suits each."""

    number: int
    kind: str
    reach: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """Figures of a pool; see `PoolStats` for what each counts. None is what nobody tells.

    Attributes:
        distinct: cached blocks, copies counted once.
        pinned: blocks that pins hold.
        block_bytes, used_bytes: memory of one block, and of those that are used.
        groups: the attention groups of a model that has several, or one of limited reach.
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
    groups: tuple[GroupFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a prompt leaves the cached chain that it follows furthest.

    Attributes:
        position: index of the first token that differs.
        cached: the chain's tokens from there to its block's end.
        prompt: the prompt's tokens over the same positions.
        before: the last tokens that they share.
    """

    position: int
    cached: tuple[int, ...]
    prompt: tuple[int, ...]
    before: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What a prompt would reuse of the embedded engine's pool.

    Attributes:
        prompt_tokens: length of the prompt.
        matched_tokens: how many of them are cached.
        blocks: ids of the blocks that hold them.
        divergence: where the prompt leaves the chain that it follows furthest; None where it leaves none.
        groups: what each attention group could reuse alone, of a model that has several, or one of limited reach.
    """

    prompt_tokens: int
    matched_tokens: int
    blocks: tuple[int, ...]
    divergence: Divergence | None
    groups: tuple[GroupMatch, ...] = ()
