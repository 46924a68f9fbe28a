"""The interface to the prefix cache of the embedded engine, or of upstreams."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from kvproxy.apis.api_request import ApiRequest
from kvproxy.backends.reports import DivergenceText, PrefixCacheStats, PrefixReport, ResetReport
from kvproxy.blocks.divergence import Divergence
from kvproxy.blocks.pool_rows import TreeBranch, TreeNode, list_branches, map_block_rows
from kvproxy.blocks.row_types import (
    BlockContent,
    BlockRow,
    ChainRow,
    PinRow,
    PoolMap,
)
from kvproxy.errors import NoPrefixCache
from kvproxy.tiers.chunk_store import TierStats


class PrefixCache(Protocol):
    """The prefix cache of the embedded engine or of upstreams. Methods may raise NoPrefixCache."""

    async def blocks(self) -> list[BlockRow]: ...
    async def eviction_queue(self) -> list[BlockRow]: ...

    async def pool_map(self) -> PoolMap:
        return await asyncio.to_thread(map_block_rows, await self.blocks())

    async def list_branches(self, parent: str | None, start: int, limit: int) -> tuple[list[TreeBranch], int]:
        """Return a page of the branches after block `parent` in the prefix tree, with texts, and the number of all branches."""
        branches, total = await asyncio.to_thread(list_branches, await self._tree_nodes(), parent, start, limit)
        # One after another: each may call the server, and llama-server has few threads.
        contents = [await self.find_block(branch.names[0]) for branch in branches]
        texts = ["" if content is None else content.text for content in contents]
        return [replace(branch, text=text) for branch, text in zip(branches, texts, strict=True)], total

    async def _tree_nodes(self) -> list[TreeNode]: ...
    async def chains(self) -> list[ChainRow]: ...
    async def find_block(self, name: str) -> BlockContent | None:
        """Find a block by its number (embedded engine), or by the beginning of its hash (mirror)."""

    async def stats(self) -> PrefixCacheStats: ...
    async def reset(self) -> ResetReport: ...
    async def explain(self, request: ApiRequest) -> PrefixReport | None: ...

    async def pins(self) -> list[PinRow]:
        raise _no_blocks_error()

    async def pin(self, name: str, ttl: float | None, request: ApiRequest) -> int:
        """Pin the request's prompt for `ttl` seconds (None: no limit); return the number of pinned tokens."""
        raise _no_blocks_error()

    async def unpin(self, name: str) -> bool:
        raise _no_blocks_error()

    async def tiers(self) -> list[TierStats]:
        raise _no_blocks_error()

    async def clear_tier(self, name: str) -> int | None:
        """Delete all chunks in a tier; return their number, or None for an unknown tier."""
        raise _no_blocks_error()


def no_events_error() -> NoPrefixCache:
    return NoPrefixCache(
        "the prefix cache belongs to the upstream, which does not publish it; --kv-events mirrors the cache of vLLM and SGLang,"
        " and kvproxy serve without --upstream and --demo has its own"
    )


def _no_blocks_error() -> NoPrefixCache:
    return NoPrefixCache("the prefix cache belongs to the upstream: this proxy has no blocks to pin and no tiers")


Detokenize = Callable[[Sequence[int] | None], Awaitable[str | None]]
"""Returns the text of tokens: "" for None, and None if the engine could not be asked."""


async def decode_divergence(divergence: Divergence | None, detokenize: Detokenize) -> DivergenceText | None:
    if divergence is None:
        return None
    parts = (divergence.cached, divergence.prompt, divergence.before)
    cached, prompt, context = await asyncio.gather(*map(detokenize, parts))
    return DivergenceText(divergence.position, cached, prompt, context)
