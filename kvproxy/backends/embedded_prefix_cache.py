from collections.abc import Sequence
from dataclasses import replace
from typing import cast, get_args

from kvproxy.apis.api_request import PUBLIC_TENANT, ApiRequest
from kvproxy.backends.embedded import EmbeddedBackend
from kvproxy.backends.prefix_cache import (
    PrefixCache,
    PrefixCacheStats,
    PrefixReport,
    ResetReport,
    decode_divergence,
)
from kvproxy.blocks import pool_rows
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import PinLimitExceeded, Pins
from kvproxy.blocks.row_types import BlockContent, BlockRow, ChainRow, PinRow, PoolMap
from kvproxy.engine.tier_connector import ModelScope
from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.tiers.chunk_store import TierStats

_MAX_DIGITS = 12


class EmbeddedPrefixCache(PrefixCache):
    def __init__(self, backend: EmbeddedBackend) -> None:
        self._backend = backend
        self._worker = backend.worker

    async def blocks(self) -> list[BlockRow]:
        return await self._worker.inspect(pool_rows.list_blocks)

    async def eviction_queue(self) -> list[BlockRow]:
        return await self._worker.inspect(pool_rows.list_free_blocks)

    async def pool_map(self) -> PoolMap:
        found = await self._worker.inspect(pool_rows.map_pool)
        # A salt begins with the tenant's name.
        return replace(found, tenants=[salt.removesuffix(":") or PUBLIC_TENANT for salt in found.tenants or ()])

    async def _tree_nodes(self) -> list[pool_rows.TreeNode]:
        return await self._worker.inspect(pool_rows.tree_nodes_from_pool)

    async def chains(self) -> list[ChainRow]:
        found = await self._worker.inspect(pool_rows.list_chains)
        return [replace(chain, first_text=await self._text(chain.first_tokens)) for chain in found]

    async def find_block(self, name: str) -> BlockContent | None:
        if not (name.isdecimal() and name.isascii() and len(name) <= _MAX_DIGITS):
            raise InvalidRequest(f"blocks of the embedded engine have numbers, not {name[:40]!r}: see blocks ls")
        block = await self._worker.inspect(lambda manager: pool_rows.read_block(manager, int(name)))
        return block and replace(block, text=await self._text(block.tokens))

    async def stats(self) -> PrefixCacheStats:
        pool = await self._worker.inspect(pool_rows.report_pool)
        size = self._worker.block_bytes
        return PrefixCacheStats(replace(pool, block_bytes=size, used_bytes=size * (pool.used or 0)))

    async def reset(self) -> ResetReport:
        return await self._worker.inspect(_reset)

    async def explain(self, request: ApiRequest) -> PrefixReport | None:
        generation = await self._backend.generation_request(request)
        prompt = self._backend.cache_request("explain", generation)
        found = await self._worker.inspect(lambda manager: pool_rows.match_prefix(manager, prompt))
        return PrefixReport(
            prompt_tokens=found.prompt_tokens,
            matched_tokens=found.matched_tokens,
            blocks=found.blocks,
            tiers=await self._worker.match_tiers(prompt, found.matched_tokens),
            divergence=await decode_divergence(found.divergence, self._text),
            groups=found.groups,
        )

    async def pins(self) -> list[PinRow]:
        return await self._worker.access_pins(Pins.list)

    async def pin(self, name: str, ttl: float | None, request: ApiRequest | None, leaf_hash: str | None) -> int:
        chain = await self._find_chain_to_pin(request, leaf_hash)
        size, block = len(chain.tokens) - 1, self._worker.block_size
        if request is not None and size < block:
            raise InvalidRequest(f"the prompt has {size} tokens, fewer than a block ({block}), so it cannot be pinned")

        def pin(pins: Pins) -> int:
            try:
                return pins.pin(name, chain, ttl)
            except PinLimitExceeded as error:
                raise InvalidRequest(f"{error}: remove a pin, or start with more blocks (--num-blocks)") from None

        return await self._worker.access_pins(pin)

    async def _find_chain_to_pin(self, request: ApiRequest | None, leaf_hash: str | None) -> CacheRequest:
        if request is not None:
            generation = await self._backend.generation_request(request)
            chain = self._backend.cache_request("pin", generation)
            # A lookup never matches the last token, so add one.
            chain.append(0)
            return chain
        found = None
        if leaf_hash:
            found = await self._worker.inspect(lambda manager: pool_rows.find_cached_prompt(manager, leaf_hash))
        if found is None:
            raise NotFound(f"no cached block has a hash that begins with {leaf_hash!r}: see blocks chains")
        return found

    async def unpin(self, name: str) -> bool:
        return await self._worker.access_pins(lambda pins: pins.unpin(name))

    async def tiers(self) -> list[TierStats]:
        return self._worker.tier_stats()

    async def clear_tier(self, name: str, models: str) -> int | None:
        if models not in get_args(ModelScope):
            raise InvalidRequest(f"models must be own, others or all, not {models!r}", param="models")
        return await self._worker.clear_tier(name, cast("ModelScope", models))

    async def _text(self, tokens: Sequence[int] | None) -> str:
        return await self._worker.async_tokenizer.decode_with_special_tokens(tokens) if tokens else ""


def _reset(manager: KVCacheManager) -> ResetReport:
    figures = pool_rows.report_pool(manager)
    return ResetReport(manager.reset_prefix_cache(), figures.pinned, figures.used)
