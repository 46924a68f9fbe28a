"""The slots of llama.cpp upstreams, and what is saved of them, as a prefix cache."""

import asyncio
import hashlib
import time
from dataclasses import dataclass

from kvproxy.apis.request import ApiRequest
from kvproxy.backends.prefix_cache import EngineReset, PrefixFigures, PrefixReport, ResetReport, SpelledDivergence
from kvproxy.blocks.pool_map import PoolMap, map_rows
from kvproxy.blocks.rows import BlockContent, BlockLocation, BlockRow, BlockState, ChainRow, PinRow, PoolReport
from kvproxy.errors import InvalidRequest, KvproxyError, NoPrefixCache, NotFound
from kvproxy.upstreams.engine_reports.reported_prefix import ToldPrefix, engine_pool
from kvproxy.upstreams.llama.packed_tokens import Tokens, count, first, shared, unpack
from kvproxy.upstreams.llama.server import LlamaServer
from kvproxy.upstreams.llama.slot_choice import computed_less

_BEGINNING, _AROUND = 24, 12
"""Tokens that are shown of a prefix's beginning, and around a place where two prompts part."""
_DISK = "disk"


@dataclass(frozen=True, slots=True)
class _Prefix:
    """One prefix: in a slot, or in a file."""

    server: LlamaServer
    place: str
    tokens: Tokens
    held: int
    state: BlockState
    slot: int | None
    used: float

    @property
    def digest(self) -> str:
        """Its name: a digest of its tokens."""
        return hashlib.sha256(self.tokens).hexdigest()[:32]


class SlotPrefix(ToldPrefix):
    """See `PrefixCache`. A block is what one slot or one file holds; where no upstream is llama.cpp, everything is refused."""

    @property
    def active(self) -> bool:
        """Whether an upstream is llama.cpp, and tells of its slots."""
        return any(engine.llama and engine.llama.active for engine in self._fleet.engines.values())

    def _servers(self) -> list[LlamaServer]:
        found = [engine.llama for engine in self._fleet.engines.values() if engine.llama and engine.llama.active]
        if not found:
            raise self._refuse()
        return found

    async def _known(self) -> list[_Prefix]:
        """All prefixes, slots first."""
        servers = self._servers()
        await asyncio.gather(*(server.refresh() for server in servers), return_exceptions=True)
        return [prefix for server in servers for prefix in _prefixes(server)]

    async def blocks(self) -> list[BlockRow]:
        return [_row(prefix) for prefix in await self._known()]

    async def queue(self) -> list[BlockRow]:
        """Files, the next to be evicted first."""
        files = [prefix for prefix in await self._known() if prefix.place == _DISK and prefix.state != "pinned"]
        return [_row(prefix) for prefix in sorted(files, key=lambda prefix: prefix.used)]

    async def map(self) -> PoolMap:
        return map_rows(await self.blocks())

    async def chains(self) -> list[ChainRow]:
        found = [prefix for prefix in await self._known() if prefix.tokens]
        texts = await asyncio.gather(*(self._text(each.server, first(each.tokens, _BEGINNING)) for each in found))
        return [
            ChainRow(
                each.digest, None, 1, each.held, True, int(each.state == "used"), None,
                tuple(unpack(first(each.tokens, _BEGINNING))), text, BlockLocation(each.server.url, medium=each.place),
            )
            for each, text in zip(found, texts, strict=True)
        ]  # fmt: skip

    async def show(self, name: str) -> BlockContent | None:
        known = await self._known()
        found = [each for each in known if each.tokens and each.digest.startswith(name)]
        found = [each for each in known if name.isdecimal() and each.slot == int(name[:9])] or found
        if len({each.digest for each in found}) > 1:
            raise InvalidRequest(f"{len(found)} prefixes are called {name[:80]!r}: give more of the hash")
        if not found:
            return None
        prefix = found[0]
        text = await self._text(prefix.server, prefix.tokens)
        return BlockContent(_row(prefix), tuple(unpack(prefix.tokens)), text)

    async def figures(self) -> PrefixFigures:
        if not self.active:
            return await super().figures()
        known = await self._known()
        cached = [prefix for prefix in known if prefix.held]
        # Blocks of one size, as others have them, there are none.
        pool = PoolReport(
            num_blocks=None, block_size=None, free=None, cached=len(cached), used=None, usage=None, queries=None, hits=None,
            hit_rate=None, evictions=0, pinned=None, distinct=len({prefix.digest for prefix in cached}),
        )  # fmt: skip
        told = [(engine.url, engine.figures()) for engine in self._fleet.engines.values()]
        pools = tuple(engine_pool(url, figures) for url, figures in told if figures is not None)
        return PrefixFigures(pool, engines=tuple(self._fleet.engines), told=pools, slots=True)

    async def explain(self, request: ApiRequest) -> PrefixReport | None:
        try:
            known = await self._known()
            found = []
            for server in self._servers():
                prompt = await server.routes.prompt(request)
                if (plan := server.plan(prompt, list(server.slots.views.values()))) is not None:
                    found.append((server, prompt, plan))
        except NoPrefixCache:
            return None
        except KvproxyError as error:
            return PrefixReport(reason=error.message)
        if not found:
            return PrefixReport(reason="the server told of no slot")
        server, prompt, plan = max(found, key=lambda each: each[2].reused)
        in_slot = computed_less(plan.keeps, prompt)
        near = max((each for each in known if each.server is server), key=lambda each: shared(each.tokens, prompt))
        return PrefixReport(
            prompt_tokens=count(prompt),
            matched_tokens=in_slot,
            tiers={_DISK: plan.reused - in_slot} if plan.restore else {},
            divergence=await self._parting(near, prompt, shared(near.tokens, prompt)),
            reason=f"it would go to slot {plan.slot}"
            + (f", restored from a file with {plan.reused:,} tokens of the prompt" if plan.restore else ""),
            engine=server.url,
            engines={one.url: best.reused for one, _, best in found},
            slots=True,
            complete=all(view.known and not view.taken for view in server.slots.views.values()),
        )

    async def _parting(self, prefix: _Prefix, prompt: Tokens, position: int) -> SpelledDivergence | None:
        """Where a prompt leaves a prefix; None where it leaves none."""
        if not position or position >= min(count(prefix.tokens), count(prompt)):
            return None
        parts = ((prefix.tokens, position, _AROUND), (prompt, position, _AROUND), (prompt, position - _AROUND, _AROUND))
        texts = [
            await self._text(prefix.server, first(tokens, start + length)[len(first(tokens, max(0, start))) :])
            for tokens, start, length in parts
        ]
        return SpelledDivergence(position, *texts)

    async def reset(self) -> ResetReport:
        """Empty every slot, and forget every file, pins aside."""
        done = tuple([await self._reset(server) for server in self._servers()])
        return ResetReport(all(each.reset for each in done), engines=done)

    async def _reset(self, server: LlamaServer) -> EngineReset:
        views = list(server.slots.views.values())
        for view in views:
            await server.slots.settled(view)
        if not all(view.free for view in views):
            return EngineReset(server.url, False, "requests use its slots, try again")
        if server.keeper is not None:
            server.keeper.shelf.evict(0)
        try:
            for view in views:
                view.take()
                try:
                    await server.routes.erase(view.slot)
                    view.held, view.tokens = b"", 0
                finally:
                    server.slots.release(view)
        except KvproxyError as error:
            return EngineReset(server.url, False, error.message)
        return EngineReset(server.url, True)

    async def pins(self) -> list[PinRow]:
        now = time.time()
        found = [pin for server in self._servers() if server.keeper for pin in server.keeper.shelf.pins()]
        return [PinRow(pin.name, (), None if pin.until is None else pin.until - now) for pin in found]

    async def pin(self, name: str, ttl: float | None, request: ApiRequest | None, leaf: str | None) -> int:
        """Keep the file that holds most of a prompt; what only a slot holds is saved first."""
        known = [prefix for prefix in await self._known() if prefix.tokens and prefix.server.keeper is not None]
        if leaf is not None:
            found = [(count(each.tokens), each) for each in known if each.digest.startswith(leaf)]
        elif request is not None:
            prompt = await self._servers()[0].routes.prompt(request)
            found = [(shared(each.tokens, prompt), each) for each in known]
        tokens, best = max(found, key=lambda each: (each[0], each[1].slot is None), default=(0, None))
        if best is None or best.server.keeper is None or tokens < best.server.settings.least_tokens:
            raise NotFound("nothing of this prompt is in a slot or on disk: send it once, then pin it")
        saved = await self._saved(best)
        if saved is None:
            raise NoPrefixCache("the slot could not be saved: see the log, or try again when its request is over")
        best.server.keeper.shelf.pin(name, saved, None if ttl is None else time.time() + ttl)
        return tokens

    async def _saved(self, prefix: _Prefix) -> str | None:
        """The file that holds a prefix, written now where there is none."""
        server, view = prefix.server, prefix.server.slots.views.get(-1 if prefix.slot is None else prefix.slot)
        if view is not None:
            await server.slots.settled(view)
        files = server.keeper.shelf.of(server.keeper.identity) if server.keeper else []
        name = next((file.name for file in files if (file.tokens or b"").startswith(prefix.tokens)), None)
        if name is not None or view is None or not view.free or server.keeper is None:
            return name
        return await server.save(view, server.keeper)

    async def unpin(self, name: str) -> bool:
        # Every server is asked, for each may have a pin of this name.
        done = [server.keeper.shelf.unpin(name) for server in self._servers() if server.keeper]
        return any(done)

    async def _text(self, server: LlamaServer, tokens: Tokens) -> str:
        try:
            return await server.routes.text(tokens) if tokens else ""
        except KvproxyError:
            return " ".join(map(str, unpack(tokens)))


def _prefixes(server: LlamaServer) -> list[_Prefix]:
    found = []
    for view in sorted(server.slots.views.values(), key=lambda view: view.slot):
        state: BlockState = "used" if not view.free else "cached" if view.tokens else "free"
        found.append(_Prefix(server, f"slot {view.slot}", view.held, view.tokens, state, view.slot, view.used))
    if server.keeper is not None:
        pinned = {pin.file for pin in server.keeper.shelf.pins()}
        for file in server.keeper.shelf.of(server.keeper.identity):
            kept: BlockState = "pinned" if file.name in pinned else "cached"
            found.append(_Prefix(server, _DISK, file.tokens or b"", file.held, kept, None, file.used))
    return found


def _row(prefix: _Prefix) -> BlockRow:
    return BlockRow(
        prefix.slot, prefix.state, None, prefix.digest if prefix.tokens else None, None, bool(prefix.tokens), prefix.held,
        None, None, None, copies=1 if prefix.held else 0, place=BlockLocation(prefix.server.url, medium=prefix.place),
    )  # fmt: skip
