"""Reports on the slots and slot files of llama.cpp. A slot or file is reported as one block of a prefix cache."""

import asyncio
import contextlib
import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from kvproxy.apis.api_request import ApiRequest
from kvproxy.backends.prefix_cache import DivergenceText, EngineResetResult, PrefixReport, decode_divergence
from kvproxy.blocks.divergence import find_divergence
from kvproxy.blocks.row_types import BlockContent, BlockLocation, BlockRow, BlockState, ChainRow
from kvproxy.errors import KvproxyError
from kvproxy.upstreams.llama.client import Tokens, common_prefix_length
from kvproxy.upstreams.llama.server import LlamaServer
from kvproxy.upstreams.llama.slots import reusable_tokens

_FIRST_TOKENS, _SHOWN_TOKENS = 24, 12  # Shown of the beginning of a prefix, and after a difference.
_DISK = "disk"


@dataclass(frozen=True, slots=True)
class _CachedPrefix:
    url: str
    place: str
    tokens: Tokens
    num_tokens: int
    state: BlockState
    slot: int | None
    used: float

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.tokens).hexdigest()[:32]


class SlotView:
    def __init__(self, server: LlamaServer) -> None:
        self._server = server

    async def _list_prefixes(self) -> list[_CachedPrefix]:
        with contextlib.suppress(KvproxyError):
            await self._server.refresh()
        found, url, saver = [], self._server.url, self._server.saver
        for slot in sorted(self._server.table.slots.values(), key=lambda slot: slot.id):
            state: BlockState = "used" if not slot.is_free else "cached" if slot.tokens else "free"
            found.append(_CachedPrefix(url, f"slot {slot.id}", slot.prefix, slot.tokens, state, slot.id, slot.used))
        if saver is not None:
            found += [
                _CachedPrefix(url, _DISK, file.tokens, file.num_tokens, "cached", None, file.used)
                for file in saver.files.list_restorable(saver.identity)
            ]
        return found

    async def blocks(self) -> list[BlockRow]:
        return [_block_row(prefix) for prefix in await self._list_prefixes()]

    async def eviction_queue(self) -> list[BlockRow]:
        files = [prefix for prefix in await self._list_prefixes() if prefix.slot is None]
        return [_block_row(prefix) for prefix in sorted(files, key=lambda prefix: prefix.used)]

    async def chains(self) -> list[ChainRow]:
        found = [prefix for prefix in await self._list_prefixes() if prefix.tokens]
        texts = await asyncio.gather(*(self.detokenize(each.tokens[:_FIRST_TOKENS]) for each in found))
        return [
            ChainRow(
                leaf=each.digest,
                num_blocks=1,
                num_tokens=each.num_tokens,
                complete=True,
                in_use=int(each.state == "used"),
                first_tokens=tuple(each.tokens[:_FIRST_TOKENS]),
                first_text=text,
                place=BlockLocation(each.url, medium=each.place),
            )
            for each, text in zip(found, texts, strict=True)
        ]

    async def find(self, name: str) -> list[BlockContent]:
        prefixes = await self._list_prefixes()
        found = [each for each in prefixes if each.tokens and each.digest.startswith(name)]
        found = [each for each in prefixes if name.isdecimal() and each.slot == int(name[:9])] or found
        return [BlockContent(_block_row(each), tuple(each.tokens)) for each in found]

    async def detokenize(self, tokens: Sequence[int] | None) -> str:
        try:
            return await self._server.client.detokenize(tokens) if tokens else ""
        except KvproxyError:
            return " ".join(map(str, tokens or ()))

    async def explain(self, request: ApiRequest) -> PrefixReport:
        server, prefixes = self._server, await self._list_prefixes()
        try:
            prompt = await server.client.tokenize_request(request)
        except KvproxyError as error:
            return PrefixReport(reason=error.message)
        choice = server.choose_slot(prompt, list(server.table.slots.values()))
        if choice is None:
            return PrefixReport(reason="the server reported no slot")
        in_slot = reusable_tokens(choice.kept, prompt)
        closest = max(prefixes, key=lambda each: common_prefix_length(each.tokens, prompt))
        restored = f", restored from a file with {choice.reused:,} tokens of the prompt" if choice.restore else ""
        return PrefixReport(
            prompt_tokens=len(prompt),
            matched_tokens=in_slot,
            tiers={_DISK: choice.reused - in_slot} if choice.restore else {},
            divergence=await self._divergence(closest, prompt),
            reason=f"it would go to slot {choice.slot}{restored}",
            engine=server.url,
            slots=True,
            complete=all(slot.has_known_tokens and not slot.locked for slot in server.table.slots.values()),
        )

    async def _divergence(self, prefix: _CachedPrefix, prompt: Tokens) -> DivergenceText | None:
        position = common_prefix_length(prefix.tokens, prompt)
        if not position:
            return None
        cached = prefix.tokens[position : position + _SHOWN_TOKENS]
        return await decode_divergence(find_divergence(prompt, position, _SHOWN_TOKENS, [cached]), self.detokenize)

    async def reset(self) -> EngineResetResult:
        server, slots = self._server, list(self._server.table.slots.values())
        for slot in slots:
            await server.table.wait_until_saved(slot)
        if not all(slot.is_free for slot in slots):
            return EngineResetResult(server.url, False, "its slots are in use: try again when no request is running")
        if server.saver is not None:
            server.saver.files.evict(0)
        try:
            for slot in slots:
                slot.lock()
                try:
                    await server.client.erase_slot(slot.id)
                    slot.prefix, slot.tokens = array("i"), 0
                finally:
                    server.table.release(slot)
        except KvproxyError as error:
            return EngineResetResult(server.url, False, error.message)
        return EngineResetResult(server.url, True)


def _block_row(prefix: _CachedPrefix) -> BlockRow:
    return BlockRow(
        id=prefix.slot,
        state=prefix.state,
        hash=prefix.digest if prefix.tokens else None,
        computed=bool(prefix.tokens),
        num_tokens=prefix.num_tokens,
        copies=1 if prefix.num_tokens else 0,
        place=BlockLocation(prefix.url, medium=prefix.place),
    )
