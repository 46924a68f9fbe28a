"""Reports on the slots and slot files of llama.cpp. A slot or file is reported as one block of a prefix cache."""

import hashlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from kvproxy.apis.api_request import ApiRequest
from kvproxy.backends.prefix_cache import decode_divergence
from kvproxy.backends.reports import DivergenceText, EngineResetResult, PrefixReport
from kvproxy.blocks.divergence import common_prefix_length, find_divergence
from kvproxy.blocks.row_types import BlockContent, BlockLocation, BlockRow, BlockState, ChainRow
from kvproxy.errors import KvproxyError, UpstreamUnreachable
from kvproxy.upstreams.llama.client import Tokens
from kvproxy.upstreams.llama.server import LlamaServer, placement_obstacle
from kvproxy.upstreams.llama.slot_files import SlotSaver
from kvproxy.upstreams.llama.slots import reusable_tokens

_FIRST_TOKENS, _SHOWN_TOKENS = 24, 12  # Shown of the beginning of a prefix, and after a difference.
_DISK = "disk"


class _CachedPrefix(NamedTuple):
    block: BlockRow
    tokens: Tokens


class SlotView:
    def __init__(self, server: LlamaServer) -> None:
        self._server = server

    async def failure(self) -> str | None:
        try:
            await self._server.refresh()
        except UpstreamUnreachable as error:
            return error.message
        except KvproxyError:
            pass  # Older servers do not respond while they compute a batch.
        return None

    async def _list_prefixes(self) -> list[_CachedPrefix]:
        # The slots of a server that is away are lost; its files remain.
        is_away = await self.failure() is not None
        prefixes, url, saver = [], self._server.url, self._server.saver
        slots = () if is_away else self._server.table.slots.values()
        for slot in sorted(slots, key=lambda slot: slot.id):
            state: BlockState = "used" if not slot.is_free else "cached" if slot.tokens else "free"
            location = BlockLocation(url, medium=f"slot {slot.id}")
            prefixes.append(_cached_prefix(slot.prefix, slot.tokens, state, location, slot.id))
        on_disk = BlockLocation(url, medium=_DISK)
        files = saver.files.list_restorable(saver.identity) if saver is not None else ()
        prefixes += [_cached_prefix(file.tokens, file.num_tokens, "cached", on_disk) for file in files]
        return prefixes

    async def blocks(self) -> list[BlockRow]:
        return [prefix.block for prefix in await self._list_prefixes()]

    async def eviction_queue(self) -> list[BlockRow]:
        # The least recently used file first.
        return [block for block in reversed(await self.blocks()) if block.id is None]

    async def chains(self) -> list[ChainRow]:
        prefixes = [prefix for prefix in await self._list_prefixes() if prefix.tokens]
        # One after another: see `LlamaClient`. After a failure, further calls would wait in vain.
        texts: list[str | None] = []
        for prefix in prefixes:
            is_failing = bool(texts) and texts[-1] is None
            texts.append(None if is_failing else await self.detokenize(prefix.tokens[:_FIRST_TOKENS]))
        return [
            ChainRow(
                leaf=prefix.block.hash or "",
                num_blocks=1,
                num_tokens=prefix.block.num_tokens,
                complete=True,
                in_use=int(prefix.block.state == "used"),
                first_tokens=tuple(prefix.tokens[:_FIRST_TOKENS]),
                first_text=text,
                place=prefix.block.place,
            )
            for prefix, text in zip(prefixes, texts, strict=True)
        ]

    async def find(self, name: str) -> list[BlockContent]:
        prefixes = await self._list_prefixes()
        matches = [prefix for prefix in prefixes if prefix.tokens and (prefix.block.hash or "").startswith(name)]
        matches = [prefix for prefix in prefixes if name.isdecimal() and prefix.block.id == int(name[:9])] or matches
        return [BlockContent(prefix.block, tuple(prefix.tokens)) for prefix in matches]

    async def detokenize(self, tokens: Sequence[int] | None) -> str | None:
        try:
            return await self._server.client.detokenize(tokens) if tokens else ""
        except KvproxyError:
            return None

    async def explain(self, request: ApiRequest) -> PrefixReport:
        server, prefixes = self._server, await self._list_prefixes()
        try:
            prompt = await server.client.tokenize_request(request)
        except KvproxyError as error:
            return PrefixReport(reason=error.message)
        obstacle = placement_obstacle(request)
        if obstacle is not None:
            return PrefixReport(prompt_tokens=len(prompt), reason=obstacle)
        choice = server.choose_slot(prompt, list(server.table.slots.values()))
        if choice is None:
            return PrefixReport(reason="the server reported no slot")
        in_slot = reusable_tokens(choice.kept, prompt)
        closest = max(prefixes, key=lambda prefix: common_prefix_length(prefix.tokens, prompt))
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
        server.client.forget_texts()
        for slot in slots:
            slot.lock()
        try:
            for slot in slots:
                await server.client.erase_slot(slot.id)
                slot.prefix, slot.tokens = array("i"), 0
            if server.saver is None or not slots:
                return EngineResetResult(server.url, True)
            return await self._reset_files(server.saver, slots[0].id)
        except KvproxyError as error:
            return EngineResetResult(server.url, False, error.message)
        finally:
            for slot in slots:
                server.table.release(slot)

    async def _reset_files(self, saver: SlotSaver, erased_slot: int) -> EngineResetResult:
        url, files = self._server.url, saver.files
        failure = await saver.empty_files(erased_slot)
        if remaining := [file.name for file in files.list_with_content()]:
            names = ", ".join(remaining[:3]) + (f", and {len(remaining) - 3:,} more" if remaining[3:] else "")
            message = (
                f"its slots are empty, but files in its --slot-save-path may contain conversations: {names}"
                f" ({failure or 'a save uses them'}); repeat the reset, or delete them"
            )
            return EngineResetResult(url, False, message)
        if not files.num_files:
            return EngineResetResult(url, True)
        message = f"files without tokens remain in its --slot-save-path, for later saves: {files.num_files:,}"
        return EngineResetResult(url, True, message)


def _cached_prefix(
    tokens: Tokens, num_tokens: int, state: BlockState, location: BlockLocation, slot: int | None = None
) -> _CachedPrefix:
    block = BlockRow(
        id=slot,
        state=state,
        hash=hashlib.sha256(tokens).hexdigest()[:32] if tokens else None,
        computed=bool(tokens),
        num_tokens=num_tokens,
        copies=1 if num_tokens else 0,
        place=location,
    )
    return _CachedPrefix(block, tokens)
