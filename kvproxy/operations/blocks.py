"""The operations on the prefix cache, which a running proxy performs."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kvproxy.backends.reports import PrefixCacheStats, ResetReport
from kvproxy.blocks.pool_forecast import PoolForecast
from kvproxy.blocks.pool_rows import TreeBranch
from kvproxy.blocks.row_types import BlockRow, BlockState, ChainRow, PinRow, PoolMap
from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.operations.blocks_parameters import BlockName, BranchPage, ForecastQuery, NewPin, PinName, TierName
from kvproxy.operations.operation import CountedRows, NoParameters, RequestReader, async_operation, fields_of
from kvproxy.tiers.chunk_store import TierStats

if TYPE_CHECKING:
    from kvproxy.backends.prefix_cache import PrefixCache

_MAX_TOKEN_BYTES = 2**30
_MAX_TIER_BYTES = 2**60
_MAX_BRANCHES = 50
"""Maximum branches of the prefix tree in a response, because an upstream may have to detokenize each of them."""


class BlocksAccess(Protocol):
    """The prefix cache of a proxy."""

    @property
    def prefix(self) -> "PrefixCache": ...
    async def forecasts(self, token_bytes: float | None, tier_bytes: float | None) -> list[PoolForecast]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBlock:
    """A `BlockRow` with the fields of its place."""

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
    group: int | None
    copies: int | None
    engine: str | None = None
    rank: int | None = None
    medium: str | None = None
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBlock(ListedBlock):
    tokens: tuple[int, ...] | None
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedChain:
    """A `ChainRow` with the fields of its place."""

    leaf: str | None
    blocks: tuple[int, ...] | None
    num_blocks: int
    num_tokens: int
    complete: bool
    in_use: int | None
    last_accessed: int | None
    first_tokens: tuple[int, ...] | None
    first_text: str | None
    engine: str | None = None
    rank: int | None = None
    medium: str | None = None
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PinnedPrompt:
    name: str
    tokens: int
    ttl: float | None


@dataclass(frozen=True, slots=True)
class RemovedPin:
    unpinned: str


@dataclass(frozen=True, slots=True)
class ClearedTier:
    """A tier, and the number of its deleted chunks."""

    tier: str
    cleared: int


@async_operation("GET", "/blocks")
async def list_blocks(cache: BlocksAccess, nothing: NoParameters) -> list[ListedBlock]:
    """List the blocks of the prefix cache."""
    return await asyncio.to_thread(_listed_blocks, await cache.prefix.blocks())


@async_operation("GET", "/blocks/queue")
async def list_block_queue(cache: BlocksAccess, nothing: NoParameters) -> list[ListedBlock]:
    """List the idle blocks in eviction order."""
    return await asyncio.to_thread(_listed_blocks, await cache.prefix.eviction_queue())


@async_operation("GET", "/blocks/chains")
async def list_chains(cache: BlocksAccess, nothing: NoParameters) -> list[ListedChain]:
    """List the chains: consecutive cached blocks from the start of a prompt to a block that no cached block follows."""
    rows = await cache.prefix.chains()
    return await asyncio.to_thread(lambda: [ListedChain(**_flat_fields(row)) for row in rows])


@async_operation("GET", "/blocks/map")
async def map_pool(cache: BlocksAccess, nothing: NoParameters) -> PoolMap:
    """Return all blocks of the pool as columns, one list per field."""
    return await cache.prefix.pool_map()


@async_operation("GET", "/blocks/tree")
async def list_tree_branches(cache: BlocksAccess, page: BranchPage) -> CountedRows[TreeBranch]:
    """List the branches that follow block `parent` in the prefix tree, or all branches at its root, largest first."""
    limit = min(page.limit, _MAX_BRANCHES)
    return CountedRows(*await cache.prefix.list_branches(page.parent, page.offset, limit))


@async_operation("GET", "/blocks/what-if")
async def forecast_pools(cache: BlocksAccess, query: ForecastQuery) -> list[PoolForecast]:
    """Forecast each engine's hit rate for other pool sizes, and with an additional tier in host memory.

    `tier` is its size, such as 64GiB. For an upstream, the tier's forecast requires `bytes_per_token`, the size of a
    token's keys and values.
    """
    if query.tier > _MAX_TIER_BYTES:
        raise InvalidRequest("tier is at most 1 EiB", param="tier")
    if query.bytes_per_token is not None and query.bytes_per_token > _MAX_TOKEN_BYTES:
        raise InvalidRequest(f"bytes_per_token is a number from 1 to {_MAX_TOKEN_BYTES:,}", param="bytes_per_token")
    return await cache.forecasts(query.bytes_per_token, query.tier)


@async_operation("GET", "/blocks/stats")
async def block_statistics(cache: BlocksAccess, nothing: NoParameters) -> PrefixCacheStats:
    """Return statistics of the prefix cache."""
    return await cache.prefix.stats()


@async_operation("POST", "/blocks/reset")
async def reset_blocks(cache: BlocksAccess, nothing: NoParameters) -> ResetReport:
    """Empty the prefix cache, unless a request is running."""
    return await cache.prefix.reset()


@async_operation("GET", "/blocks/pins")
async def list_pins(cache: BlocksAccess, nothing: NoParameters) -> list[PinRow]:
    """List the pins with their blocks and remaining seconds."""
    return await cache.prefix.pins()


@async_operation("POST", "/blocks/pins")
async def pin_prompt(cache: BlocksAccess, pin: NewPin, read: RequestReader) -> PinnedPrompt:
    """Pin the cached blocks of a prompt for the time `ttl`.

    Pinned blocks are not evicted. The body is a request with the prompt, in the format of `api` (default: chat).
    """
    if not pin.name:
        raise InvalidRequest("a pin requires a name: add ?name=NAME", param="name")
    if pin.ttl == 0:
        raise InvalidRequest("ttl must be above 0", param="ttl")
    tokens = await cache.prefix.pin(pin.name, pin.ttl, await read(pin.api))
    if tokens == 0:
        raise NotFound("no full block of this prompt is cached: send it once, then pin it")
    return PinnedPrompt(pin.name, tokens, pin.ttl)


@async_operation("DELETE", "/blocks/pins/{name:path}")
async def unpin_prompt(cache: BlocksAccess, pin: PinName) -> RemovedPin:
    """Remove a pin."""
    if not await cache.prefix.unpin(pin.name):
        raise NotFound(f"no pin {pin.name[:80]!r}: blocks pins lists them")
    return RemovedPin(pin.name)


@async_operation("GET", "/blocks/tiers")
async def list_tiers(cache: BlocksAccess, nothing: NoParameters) -> list[TierStats]:
    """Return statistics of the tiers, the fastest first."""
    return await cache.prefix.tiers()


@async_operation("DELETE", "/blocks/tiers/{name}")
async def clear_tier(cache: BlocksAccess, tier: TierName) -> ClearedTier:
    """Delete all chunks in a tier."""
    cleared = await cache.prefix.clear_tier(tier.name)
    if cleared is None:
        known = ", ".join(row.name for row in await cache.prefix.tiers())
        there = f"this proxy has {known}" if known else "serve with --tier-host, --tier-disk or --tier-redis"
        raise NotFound(f"no tier {tier.name!r}: {there}")
    return ClearedTier(tier.name, cleared)


@async_operation("GET", "/blocks/{id}")
async def show_block(cache: BlocksAccess, name: BlockName) -> ShownBlock:
    """Show a block with its tokens and text, given its number or the beginning of its hash."""
    content = await cache.prefix.find_block(name.id)
    if content is None:
        raise NotFound(f"no block {name.id[:80]}: list them with kvproxy blocks ls")
    return ShownBlock(**_flat_fields(content.block), tokens=content.tokens, text=content.text)


# Routes with names before those with a parameter.
BLOCK_OPERATIONS = (
    *(list_tiers, clear_tier, list_pins, pin_prompt, unpin_prompt, list_blocks, list_block_queue, list_chains),
    *(map_pool, list_tree_branches, forecast_pools, block_statistics, reset_blocks, show_block),
)


def _listed_blocks(rows: Iterable[BlockRow]) -> list[ListedBlock]:
    return [ListedBlock(**_flat_fields(row)) for row in rows]


def _flat_fields(row: BlockRow | ChainRow) -> dict[str, Any]:
    """Return the fields of a row, with the fields of its location (`place`) instead of `place` itself."""
    values = fields_of(row)
    del values["place"]
    return values if row.place is None else values | fields_of(row.place)
