"""The view of upstreams' prefix caches through their mirrors."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from kvproxy.apis.json import Json, field
from kvproxy.apis.request import ApiRequest
from kvproxy.backends.prefix_cache import EngineReset, PrefixReport, ResetReport, add_branch_texts, spell_divergence
from kvproxy.blocks.rows import BlockContent, BlockRow, ChainRow
from kvproxy.blocks.tree import Branch, list_branches, nodes_of_rows
from kvproxy.errors import InvalidRequest, KvproxyError, NoPrefixCache
from kvproxy.mirror import view
from kvproxy.mirror.hashed_prompt import HashedPrompt
from kvproxy.mirror.match import compute_hashes
from kvproxy.upstreams.client import UpstreamClient
from kvproxy.upstreams.engine import FleetEngine
from kvproxy.upstreams.engine_reports.reported_prefix import ReportedPrefix

_MAX_TEXTS = 50
"""Chains shown with their first text, which may cost a request each."""
_TOKENIZE_SECONDS = 5.0
_RESET_PATHS = ("/reset_prefix_cache", "/flush_cache")
"""Routes of vLLM (in its development mode) and SGLang."""


class MirroredPrefix(ReportedPrefix):
    """The blocks of all mirrored engines."""

    async def _tokenize(self, request: ApiRequest) -> HashedPrompt:
        return await self._fleet.tokenizer.prompt(request, self._client(), _TOKENIZE_SECONDS)

    def _client(self) -> UpstreamClient:
        return self._fleet.mirrored()[0][0].client

    async def blocks(self) -> list[BlockRow]:
        return await asyncio.to_thread(view.list_blocks, self._snapshots())

    def _snapshots(self) -> list[view.LocationSnapshot]:
        return [
            snapshot
            for engine, mirror in self._fleet.mirrored()
            for snapshot in view.snapshot_pools(mirror.state(), engine.url)
        ]

    async def queue(self) -> list[BlockRow]:
        raise NoPrefixCache("engines do not publish their eviction order: see blocks ls and blocks chains")

    async def tree(self, parent: str | None, start: int, limit: int) -> tuple[list[Branch], int]:
        rows = await self.blocks()
        found, total = await asyncio.to_thread(lambda: list_branches(nodes_of_rows(rows), parent, start, limit))
        return await add_branch_texts(self, found), total

    async def chains(self) -> list[ChainRow]:
        rows = await asyncio.to_thread(view.list_chains, self._snapshots())
        texts = await asyncio.gather(*(self._text(chain.first_tokens) for chain in rows[:_MAX_TEXTS]))
        spelled = [replace(chain, first_text=text) for chain, text in zip(rows, texts, strict=False)]
        return spelled + rows[_MAX_TEXTS:]

    async def show(self, name: str) -> BlockContent | None:
        found = await asyncio.to_thread(view.find_blocks, self._snapshots(), name)
        if len({content.block.hash for content in found}) > 1:
            raise InvalidRequest(f"the hashes of {len(found)} blocks begin with {name[:80]!r}: give more of the hash")
        return replace(found[0], text=await self._text(found[0].tokens)) if found else None

    async def reset(self) -> ResetReport:
        """Reset all engines and their mirrors. Raises NoPrefixCache if an engine has no route for it."""
        # `SlotPrefix` resets llama.cpp.
        engines = [each for each in self._fleet.engines.values() if each.llama is None or not each.llama.active]
        done = tuple(await asyncio.gather(*map(self._reset, engines)))
        return ResetReport(all(each.reset for each in done), engines=done)

    async def _reset(self, engine: FleetEngine) -> EngineReset:
        resets = engine.mirror.num_resets() if engine.mirror is not None else []
        for path in _RESET_PATHS:
            try:
                status, reply = await engine.client.call("POST", path)
            except KvproxyError as error:
                return EngineReset(engine.url, False, error.message)
            if status in (404, 405):
                continue
            failure = _reset_failure(status, reply)
            if failure is None and engine.mirror is not None:
                engine.mirror.confirm_reset(resets)
            return EngineReset(engine.url, failure is None, failure)
        raise NoPrefixCache(f"{engine.url} has no {_RESET_PATHS[0]}: start vLLM with VLLM_SERVER_DEV_MODE=1")

    async def explain(self, request: ApiRequest) -> PrefixReport | None:
        try:
            prompt = await self._tokenize(request)
        except KvproxyError as error:
            return PrefixReport(reason=error.message)
        mirrors = self._fleet.mirrored()
        await compute_hashes(prompt, [mirror for _, mirror in mirrors])
        # A request is not routed to engines that are draining or failing.
        sound = [(engine, mirror) for engine, mirror in mirrors if engine.health.is_sound]
        found = [
            (engine, mirror, *best) for engine, mirror in sound if (best := mirror.match_prefix(prompt)) is not None
        ]
        if not found:
            return PrefixReport(
                prompt_tokens=len(prompt.tokens), matched_tokens=0, reason="no block of the upstream is known yet"
            )
        engine, mirror, rank, match = max(found, key=lambda item: item[3].matched_tokens)
        reason = (
            "matched by tokens: the engine's block hashes do not follow hash_algorithm and hash_seed"
            if match.hashes_match is False
            else None
        )
        return PrefixReport(
            prompt_tokens=match.prompt_tokens,
            matched_tokens=match.matched_tokens,
            blocks=tuple(view.hash_hex(block.hash) for block in match.blocks),
            divergence=await spell_divergence(match.divergence, self._text),
            reason=reason,
            engine=engine.url,
            rank=rank,
            engines={each.url: best.matched_tokens for each, _, _, best in found},
            complete=mirror.complete,
            hashes_match=match.hashes_match,
            digests=tuple(digest.hex() for digest in match.digests),
        )

    async def _text(self, tokens: Sequence[int] | None) -> str:
        """Return the text of tokens, or their ids if no tokenizer is available."""
        if not tokens:
            return ""
        try:
            return await self._fleet.tokenizer.text(tokens, self._client(), _TOKENIZE_SECONDS)
        except KvproxyError:
            return " ".join(map(str, tokens))


def _reset_failure(status: int, reply: Json) -> str | None:
    """Return the reason why a reset failed. vLLM reports a failure with status 200 and `"success": false`."""
    if status >= 400:
        return f"it answered {status}"
    is_busy = field(reply, "success") is False
    return "its prefix cache is in use: try again when no request is running" if is_busy else None
