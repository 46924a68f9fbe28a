"""The slots and slot files of llama.cpp upstreams as a prefix cache."""

import asyncio
import hashlib
import time
from dataclasses import dataclass

from kvproxy.apis.request import ApiRequest
from kvproxy.backends.prefix_cache import (
    EngineReset,
    PrefixFigures,
    PrefixReport,
    ResetReport,
    SpelledDivergence,
    no_events,
)
from kvproxy.blocks.rows import BlockContent, BlockLocation, BlockRow, BlockState, ChainRow, PinRow, PoolReport
from kvproxy.errors import InvalidRequest, KvproxyError, NoPrefixCache, NotFound
from kvproxy.upstreams.engine_reports.reported_prefix import ReportedPrefix
from kvproxy.upstreams.llama.packed_tokens import Tokens, common_prefix, count, first, unpack
from kvproxy.upstreams.llama.server import LlamaServer
from kvproxy.upstreams.llama.slot_choice import reusable_tokens

_FIRST_TOKENS, _CONTEXT_TOKENS = 24, 12
"""Tokens shown of a prefix, and around a divergence."""
_DISK = "disk"


@dataclass(frozen=True, slots=True)
class _CachedPrefix:
    """The contents of one slot, or of one file if `slot` is None."""

    server: LlamaServer
    place: str
    tokens: Tokens
    count: int
    state: BlockState
    slot: int | None
    used: float

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.tokens).hexdigest()[:32]


class SlotPrefix(ReportedPrefix):
    """A block is the contents of one slot or file. Without a llama.cpp upstream, methods raise NoPrefixCache."""

    @property
    def active(self) -> bool:
        """Whether an upstream is llama.cpp and reports its slots."""
        return any(engine.llama and engine.llama.active for engine in self._fleet.engines.values())

    def _servers(self) -> list[LlamaServer]:
        found = [engine.llama for engine in self._fleet.engines.values() if engine.llama and engine.llama.active]
        if not found:
            raise no_events()
        return found

    async def _prefixes(self) -> list[_CachedPrefix]:
        """Return all prefixes, slots first."""
        servers = self._servers()
        await asyncio.gather(*(server.refresh() for server in servers), return_exceptions=True)
        return [prefix for server in servers for prefix in _server_prefixes(server)]

    async def blocks(self) -> list[BlockRow]:
        return [_row(prefix) for prefix in await self._prefixes()]

    async def queue(self) -> list[BlockRow]:
        """List files in eviction order."""
        files = [prefix for prefix in await self._prefixes() if prefix.slot is None and prefix.state != "pinned"]
        return [_row(prefix) for prefix in sorted(files, key=lambda prefix: prefix.used)]

    async def chains(self) -> list[ChainRow]:
        found = [prefix for prefix in await self._prefixes() if prefix.tokens]
        texts = await asyncio.gather(*(self._text(each.server, first(each.tokens, _FIRST_TOKENS)) for each in found))
        return [
            ChainRow(
                each.digest, None, 1, each.count, True, int(each.state == "used"), None,
                tuple(unpack(first(each.tokens, _FIRST_TOKENS))), text, BlockLocation(each.server.url, medium=each.place),
            )
            for each, text in zip(found, texts, strict=True)
        ]  # fmt: skip

    async def show(self, name: str) -> BlockContent | None:
        prefixes = await self._prefixes()
        found = [each for each in prefixes if each.tokens and each.digest.startswith(name)]
        found = [each for each in prefixes if name.isdecimal() and each.slot == int(name[:9])] or found
        if len({each.digest for each in found}) > 1:
            raise InvalidRequest(f"{len(found)} prefixes match {name[:80]!r}: give more of the hash")
        if not found:
            return None
        prefix = found[0]
        text = await self._text(prefix.server, prefix.tokens)
        return BlockContent(_row(prefix), tuple(unpack(prefix.tokens)), text)

    async def figures(self) -> PrefixFigures:
        if not self.active:
            return await super().figures()
        cached = [prefix for prefix in await self._prefixes() if prefix.count]
        pool = PoolReport(
            num_blocks=None, block_size=None, free=None, cached=len(cached), used=None, usage=None, queries=None, hits=None,
            hit_rate=None, evictions=0, pinned=None, distinct=len({prefix.digest for prefix in cached}),
        )  # fmt: skip
        return PrefixFigures(pool, engines=tuple(self._fleet.engines), reported=self._reported_metrics(), slots=True)

    async def explain(self, request: ApiRequest) -> PrefixReport | None:
        try:
            prefixes = await self._prefixes()
            choices = []
            for server in self._servers():
                prompt = await server.client.prompt(request)
                if (choice := server.choose(prompt, list(server.table.slots.values()))) is not None:
                    choices.append((server, prompt, choice))
        except NoPrefixCache:
            return None
        except KvproxyError as error:
            return PrefixReport(reason=error.message)
        if not choices:
            return PrefixReport(reason="the server reported no slot")
        server, prompt, choice = max(choices, key=lambda each: each[2].reused)
        in_slot = reusable_tokens(choice.kept, prompt)
        own = (each for each in prefixes if each.server is server)
        closest = max(own, key=lambda each: common_prefix(each.tokens, prompt))
        restored = f", restored from a file with {choice.reused:,} tokens of the prompt" if choice.restore else ""
        return PrefixReport(
            prompt_tokens=count(prompt),
            matched_tokens=in_slot,
            tiers={_DISK: choice.reused - in_slot} if choice.restore else {},
            divergence=await self._divergence(closest, prompt),
            reason=f"it would go to slot {choice.slot}{restored}",
            engine=server.url,
            engines={each.url: best.reused for each, _, best in choices},
            slots=True,
            complete=all(slot.is_known and not slot.locked for slot in server.table.slots.values()),
        )

    async def _divergence(self, prefix: _CachedPrefix, prompt: Tokens) -> SpelledDivergence | None:
        position = common_prefix(prefix.tokens, prompt)
        if not position or position >= min(count(prefix.tokens), count(prompt)):
            return None
        parts = ((prefix.tokens, position), (prompt, position), (prompt, position - _CONTEXT_TOKENS))
        texts = [
            await self._text(prefix.server, first(tokens, start + _CONTEXT_TOKENS)[len(first(tokens, max(0, start))) :])
            for tokens, start in parts
        ]
        return SpelledDivergence(position, *texts)

    async def reset(self) -> ResetReport:
        """Clear all slots, and discard all files without a pin."""
        done = tuple([await self._reset(server) for server in self._servers()])
        return ResetReport(all(each.reset for each in done), engines=done)

    async def _reset(self, server: LlamaServer) -> EngineReset:
        slots = list(server.table.slots.values())
        for slot in slots:
            await server.table.wait_until_saved(slot)
        if not all(slot.is_free for slot in slots):
            return EngineReset(server.url, False, "its slots are in use: try again when no request is running")
        if server.saver is not None:
            server.saver.files.evict(0)
        try:
            for slot in slots:
                slot.lock()
                try:
                    await server.client.erase(slot.id)
                    slot.prefix, slot.tokens = b"", 0
                finally:
                    server.table.release(slot)
        except KvproxyError as error:
            return EngineReset(server.url, False, error.message)
        return EngineReset(server.url, True)

    async def pins(self) -> list[PinRow]:
        now = time.time()
        found = [pin for server in self._servers() if server.saver for pin in server.saver.files.pins()]
        return [PinRow(pin.name, (), None if pin.expires is None else pin.expires - now) for pin in found]

    async def pin(self, name: str, ttl: float | None, request: ApiRequest | None, leaf: str | None) -> int:
        """Pin the file with the longest common prefix; save its slot first if there is no file."""
        prefixes = [prefix for prefix in await self._prefixes() if prefix.tokens and prefix.server.saver is not None]
        if leaf is not None:
            found = [(count(each.tokens), each) for each in prefixes if each.digest.startswith(leaf)]
        elif request is not None:
            prompt = await self._servers()[0].client.prompt(request)
            found = [(common_prefix(each.tokens, prompt), each) for each in prefixes]
        tokens, best = max(found, key=lambda each: (each[0], each[1].slot is None), default=(0, None))
        if best is None or best.server.saver is None or tokens < best.server.settings.min_tokens:
            raise NotFound("no slot or file has this prompt: send a request with it, then pin it")
        file = await self._find_or_save(best)
        if file is None:
            raise NoPrefixCache("the slot was not saved: see the log, or try again when its request is complete")
        best.server.saver.files.pin(name, file, None if ttl is None else time.time() + ttl)
        return tokens

    async def _find_or_save(self, prefix: _CachedPrefix) -> str | None:
        """Return the file of a prefix; save the slot if there is none."""
        server, slot = prefix.server, prefix.server.table.slots.get(-1 if prefix.slot is None else prefix.slot)
        if slot is not None:
            await server.table.wait_until_saved(slot)
        files = server.saver.files.saved(server.saver.identity) if server.saver else []
        name = next((file.name for file in files if (file.tokens or b"").startswith(prefix.tokens)), None)
        if name is not None or slot is None or not slot.is_free or server.saver is None:
            return name
        return await server.save(slot, server.saver)

    async def unpin(self, name: str) -> bool:
        # Each server may have a pin of this name.
        removed = [server.saver.files.unpin(name) for server in self._servers() if server.saver]
        return any(removed)

    async def _text(self, server: LlamaServer, tokens: Tokens) -> str:
        try:
            return await server.client.text(tokens) if tokens else ""
        except KvproxyError:
            return " ".join(map(str, unpack(tokens)))


def _server_prefixes(server: LlamaServer) -> list[_CachedPrefix]:
    found = []
    for slot in sorted(server.table.slots.values(), key=lambda slot: slot.id):
        state: BlockState = "used" if not slot.is_free else "cached" if slot.tokens else "free"
        found.append(_CachedPrefix(server, f"slot {slot.id}", slot.prefix, slot.tokens, state, slot.id, slot.used))
    if server.saver is not None:
        files = server.saver.files
        pinned = {pin.file for pin in files.pins()}
        for file in files.saved(server.saver.identity):
            state = "pinned" if file.name in pinned else "cached"
            found.append(_CachedPrefix(server, _DISK, file.tokens or b"", file.count, state, None, file.used))
    return found


def _row(prefix: _CachedPrefix) -> BlockRow:
    return BlockRow(
        prefix.slot, prefix.state, None, prefix.digest if prefix.tokens else None, None, bool(prefix.tokens), prefix.count,
        None, None, None, copies=1 if prefix.count else 0, place=BlockLocation(prefix.server.url, medium=prefix.place),
    )  # fmt: skip
