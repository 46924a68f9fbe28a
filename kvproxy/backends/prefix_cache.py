"""The prefix cache as it is shown: the embedded engine's own, the mirrors of upstreams, or none at all."""

from dataclasses import dataclass, field
from typing import Protocol

from kvproxy.apis.request import ApiRequest
from kvproxy.blocks.pool_map import PoolMap
from kvproxy.blocks.rows import BlockContent, BlockRow, ChainRow, GroupMatch, PinRow, PoolReport
from kvproxy.blocks.tree import Branch
from kvproxy.errors import NoPrefixCache
from kvproxy.mirror.status import StreamStatus
from kvproxy.tiers.figures import TierFigures


@dataclass(frozen=True, slots=True)
class EnginePool:
    """What an upstream says of its own pool. A field is None where it does not tell.

    Attributes:
        usage: share of the pool that requests hold.
        running, waiting: its requests.
        queries, hits: prompt tokens looked up in its prefix cache, and found.
        age: seconds since it said so.
    """

    engine: str
    num_blocks: int | None
    usage: float | None
    running: int | None
    waiting: int | None
    queries: int | None
    hits: int | None
    age: float


@dataclass(frozen=True, slots=True)
class PrefixFigures:
    """Figures of a prefix cache.

    Attributes:
        pool: the pool, or those of all upstreams together.
        complete: whether the mirrors know everything; None for the embedded engine, and without mirrors.
        streams: how the mirrors' event streams fare.
        engines: URLs of the upstreams; none for the embedded engine.
        told: what each upstream says of itself, where it does.
        slots: whether the blocks are slots of llama.cpp, each of its own length.
    """

    pool: PoolReport
    complete: bool | None = None
    streams: tuple[StreamStatus, ...] = ()
    engines: tuple[str, ...] = ()
    told: tuple[EnginePool, ...] = ()
    slots: bool = False


@dataclass(frozen=True, slots=True)
class SpelledDivergence:
    """Where a prompt leaves what is cached, as text; see `blocks.rows.Divergence`."""

    position: int
    cached: str
    prompt: str
    context: str


@dataclass(frozen=True, slots=True)
class PrefixReport:
    """What a request would reuse. None where that is not known.

    Attributes:
        prompt_tokens: length of the prompt.
        matched_tokens: how many of them are held.
        blocks: the blocks that hold them: numbers, or hashes of mirrored ones.
        tiers: tokens that each tier beyond the pool would add.
        divergence: where the prompt leaves the chain that it follows furthest.
        reason: what stood in the way, or what to know.
        engine, rank: which engine holds most, and which of its ranks.
        engines: tokens that each engine holds.
        complete: whether the mirror knows everything.
        named_alike: whether the engine names its blocks by the recipe that we were told.
        digests: the prompt's own block digests.
        groups: what each attention group of the embedded engine could reuse alone, of a model with limited attention.
        slots: whether the engine keeps prefixes in slots, and restores them from files.
    """

    prompt_tokens: int | None = None
    matched_tokens: int | None = None
    blocks: tuple[int | str, ...] = ()
    tiers: dict[str, int] = field(default_factory=dict)
    divergence: SpelledDivergence | None = None
    reason: str | None = None
    engine: str | None = None
    rank: int | None = None
    engines: dict[str, int] = field(default_factory=dict)
    complete: bool | None = None
    named_alike: bool | None = None
    digests: tuple[str, ...] = ()
    groups: tuple[GroupMatch, ...] = ()
    slots: bool = False

    @property
    def reusable(self) -> int:
        """Tokens that would not be computed."""
        return (self.matched_tokens or 0) + sum(self.tiers.values())


@dataclass(frozen=True, slots=True)
class EngineReset:
    """What came of asking one engine to forget its prefix cache; `message` is what it said where it refused."""

    engine: str
    reset: bool
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ResetReport:
    """What came of a reset.

    Attributes:
        reset: whether everything is forgotten now.
        pinned, used: blocks that stood in the way, where that is known.
        engines: each upstream's answer.
    """

    reset: bool
    pinned: int | None = None
    used: int | None = None
    engines: tuple[EngineReset, ...] = ()


class PrefixCache(Protocol):
    """A prefix cache seen from outside. Every method but `explain` may raise NoPrefixCache."""

    async def blocks(self) -> list[BlockRow]:
        """Every block."""

    async def queue(self) -> list[BlockRow]:
        """Idle blocks, the next to be evicted first."""

    async def map(self) -> PoolMap:
        """Every block, in columns."""

    async def tree(self, parent: str | None, start: int, limit: int) -> tuple[list[Branch], int]:
        """The ways on from a block, or the beginnings of all chains, with their text; and how many there are."""

    async def chains(self) -> list[ChainRow]:
        """Cached chains, with the text that each begins with."""

    async def show(self, name: str) -> BlockContent | None:
        """One block with its tokens and text, by its number or the beginning of its hash."""

    async def figures(self) -> PrefixFigures:
        """Figures."""

    async def reset(self) -> ResetReport:
        """Forget everything."""

    async def explain(self, request: ApiRequest) -> PrefixReport | None:
        """What a request would reuse; None where that cannot be known."""

    async def pins(self) -> list[PinRow]:
        """Chains that are held, so that nothing evicts them."""

    async def pin(self, name: str, ttl: float | None, request: ApiRequest | None, leaf: str | None) -> int:
        """Hold what is cached of a request's prompt, or of the chain whose leaf's hash begins with `leaf`.

        Returns:
            How many tokens are held.
        """

    async def unpin(self, name: str) -> bool:
        """Let a pin's blocks go; False where there is no such pin."""

    async def tiers(self) -> list[TierFigures]:
        """Figures of each tier beyond the pool, the fastest first."""

    async def clear_tier(self, name: str, models: str) -> int | None:
        """Drop a tier's chunks, of the models `own`, `others` or `all`; how many, None where there is no such tier."""


class NoPrefix:
    """An upstream that does not tell what it holds: everything is refused, and the way out named."""

    def _refuse(self) -> NoPrefixCache:
        return NoPrefixCache(
            "the prefix cache belongs to the upstream: give --kv-events to see into a vLLM or SGLang server that publishes"
            " its events"
        )

    async def blocks(self) -> list[BlockRow]:
        raise self._refuse()

    async def queue(self) -> list[BlockRow]:
        raise self._refuse()

    async def map(self) -> PoolMap:
        raise self._refuse()

    async def tree(self, parent: str | None, start: int, limit: int) -> tuple[list[Branch], int]:
        raise self._refuse()

    async def chains(self) -> list[ChainRow]:
        raise self._refuse()

    async def show(self, name: str) -> BlockContent | None:
        raise self._refuse()

    async def figures(self) -> PrefixFigures:
        raise self._refuse()

    async def reset(self) -> ResetReport:
        raise self._refuse()

    async def explain(self, request: ApiRequest) -> PrefixReport | None:
        return None

    async def pins(self) -> list[PinRow]:
        raise NoPrefixCache("the prefix cache belongs to the upstream: there are no blocks to pin here")

    async def pin(self, name: str, ttl: float | None, request: ApiRequest | None, leaf: str | None) -> int:
        raise NoPrefixCache("the prefix cache belongs to the upstream: there are no blocks to pin here")

    async def unpin(self, name: str) -> bool:
        raise NoPrefixCache("the prefix cache belongs to the upstream: there are no blocks to pin here")

    async def tiers(self) -> list[TierFigures]:
        raise NoPrefixCache("the prefix cache belongs to the upstream: this proxy holds no blocks and no tiers")

    async def clear_tier(self, name: str, models: str) -> int | None:
        raise NoPrefixCache("the prefix cache belongs to the upstream: this proxy holds no blocks and no tiers")
