"""The view of a prefix cache: embedded, mirrored, or of llama.cpp."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kvproxy.apis.api_request import ApiRequest
from kvproxy.blocks.chain_tree import Branch
from kvproxy.blocks.pool_rows import map_rows
from kvproxy.blocks.row_types import (
    BlockContent,
    BlockRow,
    ChainRow,
    Divergence,
    GroupMatch,
    PinRow,
    PoolMap,
    PoolReport,
)
from kvproxy.errors import NoPrefixCache
from kvproxy.mirror.stream_status import StreamStatus
from kvproxy.tiers.chunk_store import TierStats


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Metrics of one engine; a metric is None if the engine does not report it.

    Attributes:
        usage: used share of the pool, 0 to 1.
        queries, hits: prompt tokens looked up and found since the engine's start.
        age: seconds since the report.
        engine: URL of the upstream.
    """

    kind: Literal["vllm", "sglang", "llama.cpp"]
    num_blocks: int | None = None
    block_size: int | None = None
    usage: float | None = None
    running: int | None = None
    waiting: int | None = None
    queries: int | None = None
    hits: int | None = None
    hash_algorithm: str | None = None
    prefix_caching: bool | None = None
    age: float = 0.0
    engine: str = ""


@dataclass(frozen=True, slots=True)
class PrefixFigures:
    """Statistics of a prefix cache.

    Attributes:
        pool: the pool, or the sum over all upstreams.
        complete: the mirrors missed no event; None without mirrors.
        reported: metrics of the engines that report them.
        slots: the blocks are slots of llama.cpp.
    """

    pool: PoolReport
    complete: bool | None = None
    streams: tuple[StreamStatus, ...] = ()
    engines: tuple[str, ...] = ()
    reported: tuple[EngineMetrics, ...] = ()
    slots: bool = False


@dataclass(frozen=True, slots=True)
class DivergenceText:
    """A `blocks.row_types.Divergence` as text.

    Attributes:
        cached, prompt: the texts after the difference.
        context: the equal text before it.
    """

    position: int
    cached: str
    prompt: str
    context: str


@dataclass(frozen=True, slots=True)
class PrefixReport:
    """The prefix reuse of a request. A value is None if it is unknown.

    Attributes:
        matched_tokens: length of the cached prefix in the pool.
        blocks: numbers of the blocks, or hashes of mirrored blocks.
        tiers: further cached tokens in each tier.
        reason: cause of a missing report, or a note.
        engine, rank: the engine with the longest prefix, and its rank.
        engines: cached tokens in each engine.
        complete: the mirror missed no event.
        hashes_match: the engine hashes blocks as configured.
        groups: reuse by attention group; empty if all layers have full attention.
        slots: the engine caches prefixes in slots and files.
    """

    prompt_tokens: int | None = None
    matched_tokens: int | None = None
    blocks: tuple[int | str, ...] = ()
    tiers: dict[str, int] = field(default_factory=dict)
    divergence: DivergenceText | None = None
    reason: str | None = None
    engine: str | None = None
    rank: int | None = None
    engines: dict[str, int] = field(default_factory=dict)
    complete: bool | None = None
    hashes_match: bool | None = None
    digests: tuple[str, ...] = ()
    groups: tuple[GroupMatch, ...] = ()
    slots: bool = False

    @property
    def reusable(self) -> int:
        """Return the cached tokens of pool and tiers."""
        return (self.matched_tokens or 0) + sum(self.tiers.values())


@dataclass(frozen=True, slots=True)
class EngineReset:
    engine: str
    reset: bool
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ResetReport:
    """The result of a reset.

    Attributes:
        pinned, used: numbers of blocks that prevented the reset.
    """

    reset: bool
    pinned: int | None = None
    used: int | None = None
    engines: tuple[EngineReset, ...] = ()


class PrefixCache:
    """Interface of a prefix cache. Methods raise NoPrefixCache by default."""

    async def blocks(self) -> list[BlockRow]:
        raise no_events_error()

    async def queue(self) -> list[BlockRow]:
        """List idle blocks in eviction order."""
        raise no_events_error()

    async def map(self) -> PoolMap:
        return await asyncio.to_thread(map_rows, await self.blocks())

    async def tree(self, parent: str | None, start: int, limit: int) -> tuple[list[Branch], int]:
        """Return a page of the branches after a block (None: the roots), and their total number."""
        raise no_events_error()

    async def chains(self) -> list[ChainRow]:
        raise no_events_error()

    async def show(self, name: str) -> BlockContent | None:
        """Find a block by its number or a prefix of its hash."""
        raise no_events_error()

    async def figures(self) -> PrefixFigures:
        raise no_events_error()

    async def reset(self) -> ResetReport:
        raise no_events_error()

    async def explain(self, request: ApiRequest) -> PrefixReport | None:
        return None

    async def pins(self) -> list[PinRow]:
        """List chains protected from eviction."""
        raise _no_pins_error()

    async def pin(self, name: str, ttl: float | None, request: ApiRequest | None, leaf: str | None) -> int:
        """Pin a prompt, or the chain that ends in `leaf`; return the pinned tokens."""
        raise _no_pins_error()

    async def unpin(self, name: str) -> bool:
        raise _no_pins_error()

    async def tiers(self) -> list[TierStats]:
        """List the tiers, the fastest first."""
        raise _no_tiers_error()

    async def clear_tier(self, name: str, models: str) -> int | None:
        """Delete chunks of a tier; return their number, or None for an unknown tier.

        Args:
            models: `own` for the running model, `others`, or `all`.
        """
        raise _no_tiers_error()


def no_events_error() -> NoPrefixCache:
    return NoPrefixCache(
        "the prefix cache belongs to the upstream: set --kv-events to mirror a vLLM or SGLang server that publishes events"
    )


def _no_pins_error() -> NoPrefixCache:
    return NoPrefixCache("the prefix cache belongs to the upstream: there are no blocks to pin here")


def _no_tiers_error() -> NoPrefixCache:
    return NoPrefixCache("the prefix cache belongs to the upstream: this proxy has no blocks and no tiers")


Decode = Callable[[Sequence[int] | None], Awaitable[str]]
"""Returns the text of tokens, or "" for None."""


async def decode_divergence(divergence: Divergence | None, decode: Decode) -> DivergenceText | None:
    if divergence is None:
        return None
    parts = (divergence.cached, divergence.prompt, divergence.before)
    cached, prompt, context = await asyncio.gather(*map(decode, parts))
    return DivergenceText(divergence.position, cached, prompt, context)


async def add_branch_texts(cache: PrefixCache, branches: Sequence[Branch]) -> list[Branch]:
    contents = await asyncio.gather(*(cache.show(branch.names[0]) for branch in branches))
    texts = ["" if content is None else content.text for content in contents]
    return [replace(branch, text=text) for branch, text in zip(branches, texts, strict=True)]
