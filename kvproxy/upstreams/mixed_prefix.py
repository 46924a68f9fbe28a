"""The prefix caches of a fleet in which some engines publish events and others are llama.cpp."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from kvproxy.apis.request import ApiRequest
from kvproxy.backends.prefix_cache import NoPrefix, PrefixCache, PrefixFigures, PrefixReport, ResetReport
from kvproxy.blocks.pool_map import PoolMap, map_rows
from kvproxy.blocks.rows import BlockContent, BlockRow, ChainRow, PinRow
from kvproxy.blocks.tree import Branch
from kvproxy.errors import NoPrefixCache, NotFound
from kvproxy.upstreams.llama.slot_prefix import SlotPrefix
from kvproxy.upstreams.mirrored_prefix import MirroredPrefix

Row = TypeVar("Row")


class MixedPrefix(NoPrefix):
    """See `PrefixCache`. Both kinds are asked, and what one of them refuses the other may have.

    Args:
        mirrored: the engines that publish events.
        slots: the others; it refuses everything as long as none of them is llama.cpp.
    """

    def __init__(self, mirrored: MirroredPrefix, slots: SlotPrefix) -> None:
        self._mirrored = mirrored
        self._slots = slots

    async def _rows(self, ask: Callable[[PrefixCache], Awaitable[list[Row]]]) -> list[Row]:
        """Rows of both; raises a NoPrefixCache where neither has any."""
        found: list[Row] = []
        refusals = []
        for each in (self._mirrored, self._slots):
            try:
                found += await ask(each)
            except NoPrefixCache as refusal:
                refusals.append(refusal)
        if len(refusals) == 2:
            raise refusals[0]
        return found

    async def blocks(self) -> list[BlockRow]:
        return await self._rows(lambda each: each.blocks())

    async def queue(self) -> list[BlockRow]:
        return await self._rows(lambda each: each.queue())

    async def map(self) -> PoolMap:
        return await asyncio.to_thread(map_rows, await self.blocks())

    async def tree(self, parent: str | None, start: int, limit: int) -> tuple[list[Branch], int]:
        return await self._mirrored.tree(parent, start, limit)

    async def chains(self) -> list[ChainRow]:
        return await self._rows(lambda each: each.chains())

    async def pins(self) -> list[PinRow]:
        return await self._rows(lambda each: each.pins())

    async def show(self, name: str) -> BlockContent | None:
        found = await self._mirrored.show(name)
        if found is not None or not self._slots.active:
            return found
        return await self._slots.show(name)

    async def figures(self) -> PrefixFigures:
        """The pool is that of the mirrored engines: slots have no blocks of one size."""
        return replace(await self._mirrored.figures(), slots=self._slots.active)

    async def reset(self) -> ResetReport:
        done = (await self._mirrored.reset()).engines
        if self._slots.active:
            done += (await self._slots.reset()).engines
        return ResetReport(all(each.reset for each in done), engines=done)

    async def explain(self, request: ApiRequest) -> PrefixReport | None:
        """The report of the kind that holds more, with what each engine of both holds."""
        mirrored, slots = await self._mirrored.explain(request), await self._slots.explain(request)
        known = [each for each in (mirrored, slots) if each is not None and each.prompt_tokens is not None]
        if not known:
            return mirrored
        engines = {url: tokens for each in known for url, tokens in each.engines.items()}
        return replace(max(known, key=lambda each: each.reusable), engines=engines)

    async def pin(self, name: str, ttl: float | None, request: ApiRequest | None, leaf: str | None) -> int:
        """Keep a prompt where most of it is held, or the chain of a leaf on the engine that has it."""
        if not self._slots.active:
            return await self._mirrored.pin(name, ttl, request, leaf)
        if request is None:
            try:
                return await self._mirrored.pin(name, ttl, None, leaf)
            except NotFound:
                return await self._slots.pin(name, ttl, None, leaf)
        mirrored, slots = await self._mirrored.explain(request), await self._slots.explain(request)
        in_slots = slots is not None and slots.reusable > (mirrored.reusable if mirrored else 0)
        return await (self._slots if in_slots else self._mirrored).pin(name, ttl, request, None)

    async def unpin(self, name: str) -> bool:
        done = await self._mirrored.unpin(name)
        return (self._slots.active and await self._slots.unpin(name)) or done
