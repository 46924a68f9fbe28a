"""The prefix caches of a fleet with both mirrored engines and llama.cpp servers."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from kvproxy.apis.request import ApiRequest
from kvproxy.backends.prefix_cache import PrefixCache, PrefixFigures, PrefixReport, ResetReport
from kvproxy.blocks.rows import BlockContent, BlockRow, ChainRow, PinRow
from kvproxy.blocks.tree import Branch
from kvproxy.errors import NoPrefixCache
from kvproxy.upstreams.llama.slot_prefix import SlotPrefix
from kvproxy.upstreams.mirrored_prefix import MirroredPrefix

Row = TypeVar("Row")


class MixedPrefix(PrefixCache):
    def __init__(self, mirrored: MirroredPrefix, slots: SlotPrefix) -> None:
        self._mirrored = mirrored
        self._slots = slots

    async def _rows(self, read: Callable[[PrefixCache], Awaitable[list[Row]]]) -> list[Row]:
        """Return the rows of both views. Raises NoPrefixCache if both views do."""
        found: list[Row] = []
        errors = []
        for view in (self._mirrored, self._slots):
            try:
                found += await read(view)
            except NoPrefixCache as error:
                errors.append(error)
        if len(errors) == 2:
            raise errors[0]
        return found

    async def blocks(self) -> list[BlockRow]:
        return await self._rows(lambda view: view.blocks())

    async def queue(self) -> list[BlockRow]:
        return await self._rows(lambda view: view.queue())

    async def tree(self, parent: str | None, start: int, limit: int) -> tuple[list[Branch], int]:
        return await self._mirrored.tree(parent, start, limit)

    async def chains(self) -> list[ChainRow]:
        return await self._rows(lambda view: view.chains())

    async def pins(self) -> list[PinRow]:
        return await self._slots.pins()

    async def show(self, name: str) -> BlockContent | None:
        found = await self._mirrored.show(name)
        if found is not None or not self._slots.active:
            return found
        return await self._slots.show(name)

    async def figures(self) -> PrefixFigures:
        """Return the pool of the mirrored engines, since slots have no blocks of one size."""
        return replace(await self._mirrored.figures(), slots=self._slots.active)

    async def reset(self) -> ResetReport:
        engines = (await self._mirrored.reset()).engines
        if self._slots.active:
            engines += (await self._slots.reset()).engines
        return ResetReport(all(each.reset for each in engines), engines=engines)

    async def explain(self, request: ApiRequest) -> PrefixReport | None:
        """Return the report of the view with the longer prefix, with the engines of both."""
        mirrored, slots = await self._mirrored.explain(request), await self._slots.explain(request)
        known = [each for each in (mirrored, slots) if each is not None and each.prompt_tokens is not None]
        if not known:
            return mirrored
        engines = {url: tokens for each in known for url, tokens in each.engines.items()}
        return replace(max(known, key=lambda each: each.reusable), engines=engines)

    async def pin(self, name: str, ttl: float | None, request: ApiRequest | None, leaf: str | None) -> int:
        return await self._slots.pin(name, ttl, request, leaf)

    async def unpin(self, name: str) -> bool:
        return await self._slots.unpin(name)
