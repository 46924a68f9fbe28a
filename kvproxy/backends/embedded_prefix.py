"""The embedded engine's own block pool and tiers, as they are shown."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from kvproxy.apis.request import PUBLIC, ApiRequest
from kvproxy.backends.embedded import EmbeddedBackend
from kvproxy.backends.prefix_cache import PrefixFigures, PrefixReport, ResetReport, SpelledDivergence
from kvproxy.blocks import view
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.map import PoolMap, map_pool
from kvproxy.blocks.pins import Pins, PinsFull
from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.rows import BlockContent, BlockRow, ChainRow, Divergence, PinRow
from kvproxy.blocks.tree import Branch, branches, links_of_blocks, named_blocks
from kvproxy.engine.kv_connector.tier_connector import ModelScope
from kvproxy.errors import InvalidRequest, NotFound
from kvproxy.tiers.figures import TierFigures

_LONGEST_NUMBER = 12
_MODELS: dict[str, ModelScope] = {"own": "own", "others": "others", "all": "all"}


class EmbeddedPrefix:
    """See `PrefixCache`."""

    def __init__(self, backend: EmbeddedBackend) -> None:
        self._backend = backend
        self._worker = backend.worker

    async def blocks(self) -> list[BlockRow]:
        return await asyncio.to_thread(view.rows, await self._worker.inspect(view.all_blocks))

    async def queue(self) -> list[BlockRow]:
        return await asyncio.to_thread(view.rows, await self._worker.inspect(view.idle_blocks))

    async def map(self) -> PoolMap:
        found = await self._worker.inspect(map_pool)
        # A tenant's blocks have its name before the request's own salt.
        return replace(found, tenants=[salt.removesuffix(":") or PUBLIC for salt in found.tenants or ()])

    async def tree(self, parent: str | None, start: int, limit: int) -> tuple[list[Branch], int]:
        blocks = await self._worker.inspect(named_blocks)
        found, total = await asyncio.to_thread(lambda: branches(links_of_blocks(blocks), parent, start, limit))
        contents = await asyncio.gather(*(self.show(branch.names[0]) for branch in found))
        texts = ["" if content is None else content.text for content in contents]
        return [replace(branch, text=text) for branch, text in zip(found, texts, strict=True)], total

    async def chains(self) -> list[ChainRow]:
        found = await self._worker.inspect(view.chains)
        return [replace(chain, begins=await self._text(chain.first_tokens)) for chain in found]

    async def show(self, name: str) -> BlockContent | None:
        if not (name.isdecimal() and name.isascii() and len(name) <= _LONGEST_NUMBER):
            raise InvalidRequest(f"blocks of the embedded engine have numbers, not {name[:40]!r}: blocks ls lists them")
        block = await self._worker.inspect(lambda manager: view.show_block(manager, int(name)))
        return block and replace(block, text=await self._text(block.tokens))

    async def figures(self) -> PrefixFigures:
        pool = await self._worker.inspect(view.stats)
        size = self._worker.block_bytes
        return PrefixFigures(replace(pool, block_bytes=size, used_bytes=size * (pool.used or 0)))

    async def reset(self) -> ResetReport:
        return await self._worker.inspect(_reset)

    async def explain(self, request: ApiRequest) -> PrefixReport | None:
        generation = await self._backend.generation(request)
        asked = self._backend.cached("explain", generation)
        found = await self._worker.inspect(lambda manager: view.match(manager, asked))
        return PrefixReport(
            prompt_tokens=found.prompt_tokens,
            matched_tokens=found.matched_tokens,
            blocks=found.blocks,
            tiers=await self._worker.tier_match(asked, found.matched_tokens),
            divergence=await self._spelled(found.divergence),
            groups=found.groups,
        )

    async def pins(self) -> list[PinRow]:
        return await self._worker.pins(Pins.list)

    async def pin(self, name: str, ttl: float | None, request: ApiRequest | None, leaf: str | None) -> int:
        wanted = await self._chain(request, leaf)

        def pin(pins: Pins) -> int:
            try:
                return pins.pin(name, wanted, ttl)
            except PinsFull as error:
                raise InvalidRequest(f"{error}: unpin others, or start with more blocks (--num-blocks)") from None

        return await self._worker.pins(pin)

    async def _chain(self, request: ApiRequest | None, leaf: str | None) -> CacheRequest:
        if request is not None:
            asked = await self._backend.generation(request)
            # One token more than the prompt, since a lookup leaves one token to compute.
            return self._backend.cached("pin", asked, 0)
        found = await self._worker.inspect(lambda manager: view.chain_to(manager, leaf)) if leaf else None
        if found is None:
            raise NotFound(f"no cached block's hash begins with {leaf!r}: blocks chains lists the leaves")
        return found

    async def unpin(self, name: str) -> bool:
        return await self._worker.pins(lambda pins: pins.unpin(name))

    async def tiers(self) -> list[TierFigures]:
        return self._worker.tier_figures()

    async def clear_tier(self, name: str, models: str) -> int | None:
        if models not in _MODELS:
            raise InvalidRequest(f"models is own, others or all, not {models!r}", param="models")
        return await self._worker.clear_tier(name, _MODELS[models])

    async def _spelled(self, divergence: Divergence | None) -> SpelledDivergence | None:
        if divergence is None:
            return None
        return SpelledDivergence(
            divergence.position,
            cached=await self._text(divergence.cached),
            prompt=await self._text(divergence.prompt),
            context=await self._text(divergence.before),
        )

    async def _text(self, tokens: Sequence[int] | None) -> str:
        return "".join(await self._worker.async_tokenizer.token_texts(list(tokens))) if tokens else ""


def _reset(manager: KVCacheManager) -> ResetReport:
    figures = view.stats(manager)
    return ResetReport(manager.reset_prefix_cache(), figures.pinned, figures.used)
