import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import Json, field
from kvproxy.backends.prefix_cache import EngineResetResult, PrefixReport, decode_divergence
from kvproxy.blocks.row_types import BlockContent, BlockRow, ChainRow
from kvproxy.errors import KvproxyError, NoPrefixCache
from kvproxy.mirror import pool_rows
from kvproxy.mirror.prefix_match import compute_hashes
from kvproxy.upstreams.fleet_engine import FleetEngine
from kvproxy.upstreams.prompt_tokenizer import PromptTokenizer

if TYPE_CHECKING:
    from kvproxy.mirror.mirror import Mirror

_MAX_TEXTS = 50  # Each chain's text may require a request to the engine.
_TOKENIZE_SECONDS = 5.0
_RESET_PATHS = ("/reset_prefix_cache", "/flush_cache")  # vLLM's development mode, and SGLang.


class MirrorView:
    def __init__(self, engine: FleetEngine, mirror: "Mirror", tokenizer: PromptTokenizer) -> None:
        self._engine = engine
        self._mirror = mirror
        self._tokenizer = tokenizer

    def _snapshots(self) -> list[pool_rows.LocationSnapshot]:
        return pool_rows.snapshot_pools(self._mirror.state(), self._engine.url)

    async def blocks(self) -> list[BlockRow]:
        return await asyncio.to_thread(pool_rows.list_blocks, self._snapshots())

    async def find(self, name: str) -> list[BlockContent]:
        return await asyncio.to_thread(pool_rows.find_blocks, self._snapshots(), name)

    async def chains(self) -> list[ChainRow]:
        rows = await asyncio.to_thread(pool_rows.list_chains, self._snapshots())
        texts = await asyncio.gather(*(self.text(chain.first_tokens) for chain in rows[:_MAX_TEXTS]))
        spelled = [replace(chain, first_text=text) for chain, text in zip(rows, texts, strict=False)]
        return spelled + rows[_MAX_TEXTS:]

    async def text(self, tokens: Sequence[int] | None) -> str:
        if not tokens:
            return ""
        try:
            return await self._tokenizer.detokenize(tokens, self._engine.client, _TOKENIZE_SECONDS)
        except KvproxyError:
            return " ".join(map(str, tokens))

    async def explain(self, request: ApiRequest) -> PrefixReport:
        try:
            prompt = await self._tokenizer.tokenize_request(request, self._engine.client, _TOKENIZE_SECONDS)
        except KvproxyError as error:
            return PrefixReport(reason=error.message)
        await compute_hashes(prompt, [self._mirror])
        # Requests are not routed to a draining or failing engine.
        found = self._mirror.match_prefix(prompt) if self._engine.health.is_healthy else None
        if found is None:
            return PrefixReport(
                prompt_tokens=len(prompt.tokens), matched_tokens=0, reason="no block of the upstream is known yet"
            )
        rank, match = found
        reason = (
            "matched by tokens: the engine's block hashes do not follow hash_algorithm and hash_seed"
            if match.hashes_match is False
            else None
        )
        return PrefixReport(
            prompt_tokens=len(prompt.tokens),
            matched_tokens=match.matched_tokens,
            blocks=tuple(pool_rows.hash_hex(block.hash) for block in match.blocks),
            divergence=await decode_divergence(match.divergence(), self.text),
            reason=reason,
            engine=self._engine.url,
            rank=rank,
            complete=self._mirror.complete,
        )


async def reset_engine(engine: FleetEngine) -> EngineResetResult:
    """Reset an engine's prefix cache and its mirror. Raises NoPrefixCache if the engine cannot reset its cache by request."""
    resets = engine.mirror.num_resets() if engine.mirror is not None else []
    for path in _RESET_PATHS:
        try:
            status, reply = await engine.client.call("POST", path)
        except KvproxyError as error:
            return EngineResetResult(engine.url, False, error.message)
        if status in (404, 405):
            continue
        failure = _reset_failure(status, reply)
        if failure is None and engine.mirror is not None:
            engine.mirror.clear_after_reset(resets)
        return EngineResetResult(engine.url, failure is None, failure)
    raise NoPrefixCache(f"{engine.url} has no {_RESET_PATHS[0]}: start vLLM with VLLM_SERVER_DEV_MODE=1")


def _reset_failure(status: int, reply: Json) -> str | None:
    if status >= 400:
        return f"it answered {status}"
    is_busy = field(reply, "success") is False
    return "its prefix cache is in use: try again when no request is running" if is_busy else None
