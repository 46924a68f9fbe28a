"""The prefix caches of all upstreams, as their mirrors and metrics show them."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import field
from kvproxy.backends.prefix_cache import PrefixCache, decode_divergence, no_events_error
from kvproxy.backends.reports import EngineMetrics, EngineResetResult, PrefixCacheStats, PrefixReport, ResetReport
from kvproxy.blocks.pool_rows import TreeNode, tree_nodes_from_rows
from kvproxy.blocks.row_types import BlockContent, BlockRow, ChainRow, PoolReport
from kvproxy.errors import InvalidRequest, KvproxyError, NoPrefixCache
from kvproxy.upstreams.fleet import Fleet
from kvproxy.upstreams.fleet_engine import FleetEngine
from kvproxy.upstreams.kind import PrefixView
from kvproxy.upstreams.mirror import pool_rows
from kvproxy.upstreams.mirror.prompt_hashes import compute_hashes
from kvproxy.upstreams.prompt_tokenizer import PromptTokenizer

if TYPE_CHECKING:
    from kvproxy.upstreams.mirror.mirror import Mirror

_MAX_TEXTS = 50  # Each chain's text may require a request to the engine.
_TEXT_CONNECTIONS = 8
_TOKENIZE_SECONDS = 5.0
_RESET_SECONDS = 60.0
_RESET_PATHS = ("/reset_prefix_cache", "/flush_cache")  # vLLM's development mode, and SGLang.


class MirrorView:
    def __init__(self, engine: FleetEngine, mirror: "Mirror", tokenizer: PromptTokenizer) -> None:
        self.engine = engine
        self._mirror = mirror
        self._tokenizer = tokenizer

    def _snapshots(self) -> list[pool_rows.LocationSnapshot]:
        return pool_rows.snapshot_pools(self._mirror.state(), self.engine.url)

    async def blocks(self) -> list[BlockRow]:
        return [content.block for content in await self.find("")]

    async def find(self, name: str) -> list[BlockContent]:
        return await asyncio.to_thread(pool_rows.find_blocks, self._snapshots(), name)

    async def chains(self) -> list[ChainRow]:
        rows = await asyncio.to_thread(pool_rows.list_chains, self._snapshots())
        connections = asyncio.Semaphore(_TEXT_CONNECTIONS)

        async def text(chain: ChainRow) -> str | None:
            async with connections:
                return await self.detokenize(chain.first_tokens)

        texts = await asyncio.gather(*map(text, rows[:_MAX_TEXTS]))
        spelled = [replace(chain, first_text=text) for chain, text in zip(rows, texts, strict=False)]
        return spelled + rows[_MAX_TEXTS:]

    async def detokenize(self, tokens: Sequence[int] | None) -> str | None:
        if not tokens:
            return ""
        try:
            return await self._tokenizer.detokenize(tokens, self.engine.client, _TOKENIZE_SECONDS)
        except KvproxyError:
            return None

    async def explain(self, request: ApiRequest) -> PrefixReport:
        try:
            prompt = await self._tokenizer.tokenize_request(request, self.engine.client, _TOKENIZE_SECONDS)
        except KvproxyError as error:
            return PrefixReport(reason=error.message)
        await compute_hashes(prompt, [self._mirror])
        # Requests are not routed to a draining or failing engine.
        best_match = self._mirror.match_prefix(prompt) if self.engine.health.is_healthy else None
        if best_match is None:
            reason = "no block of the upstream is known yet"
            return PrefixReport(prompt_tokens=len(prompt.tokens), matched_tokens=0, reason=reason)
        rank, match = best_match
        reasons = [self.engine.reuse_limits()]
        if match.blocks and self._mirror.hashes_match() is False:
            reasons.append("matched by tokens: the engine's block hashes do not follow hash_algorithm and hash_seed")
        return PrefixReport(
            prompt_tokens=len(prompt.tokens),
            matched_tokens=match.matched_tokens,
            tiers=dict(match.tiers.by_medium),
            blocks=tuple(pool_rows.hash_hex(block.hash) for block in match.blocks),
            divergence=await decode_divergence(match.divergence(), self.detokenize),
            reason="; ".join(filter(None, reasons)) or None,
            engine=self.engine.url,
            rank=rank,
            complete=self._mirror.is_complete,
        )


class FleetPrefixCache(PrefixCache):
    """The prefix caches of all engines. An engine without mirror or slots contributes only its metrics."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def _mirror_views(self) -> list[MirrorView]:
        return [MirrorView(engine, mirror, self._fleet.tokenizer) for engine, mirror in self._fleet.mirrored_engines()]

    def _slot_views(self) -> list[PrefixView]:
        return [view for engine in self._fleet.engines.values() if (view := engine.prefix_view()) is not None]

    def _all_views(self) -> list[MirrorView | PrefixView]:
        views: list[MirrorView | PrefixView] = [*self._mirror_views(), *self._slot_views()]
        if views:
            return views
        for engine in self._fleet.engines.values():
            if engine.health.outage is not None:
                raise NoPrefixCache(
                    f"{engine.url} does not respond, so its prefix cache is unknown: {engine.health.outage}"
                )
        raise no_events_error()

    async def blocks(self) -> list[BlockRow]:
        return [row for view in self._all_views() for row in await view.blocks()]

    async def eviction_queue(self) -> list[BlockRow]:
        self._all_views()
        slots = self._slot_views()
        if not slots:
            raise NoPrefixCache("engines do not publish their eviction order: see blocks ls and blocks chains")
        return [row for view in slots for row in await view.eviction_queue()]

    async def _tree_nodes(self) -> list[TreeNode]:
        return await asyncio.to_thread(tree_nodes_from_rows, await self.blocks())

    async def chains(self) -> list[ChainRow]:
        return [row for view in self._all_views() for row in await view.chains()]

    async def find_block(self, name: str) -> BlockContent | None:
        matches = [(view, content) for view in self._all_views() for content in await view.find(name)]
        if len({content.block.hash for _, content in matches}) > 1:
            raise InvalidRequest(f"{len(matches)} blocks match {name[:80]!r}: give more of the hash")
        if not matches:
            return None
        view, content = matches[0]
        return replace(content, text=await view.detokenize(content.tokens))

    async def stats(self) -> PrefixCacheStats:
        mirrors, slots = [mirror for _, mirror in self._fleet.mirrored_engines()], self._slot_views()
        metrics = tuple(
            engine_metrics for engine in self._fleet.engines.values() if (engine_metrics := engine.metrics())
        )
        if mirrors or (metrics and not slots):
            pool = _sum_pools([mirror.report() for mirror in mirrors], metrics, len(self._fleet.engines))
        else:
            cached = [row for row in await self.blocks() if row.num_tokens]
            pool = PoolReport(cached=len(cached), evictions=0, distinct=len({row.hash for row in cached}))
        return replace(
            PrefixCacheStats.of_pool(pool),
            complete=all(mirror.is_complete for mirror in mirrors) if mirrors else None,
            streams=tuple(stream for mirror in mirrors for stream in mirror.streams()),
            engines=tuple(self._fleet.engines),
            reported=metrics,
            slots=bool(slots),
            away=await self._away_upstreams(),
        )

    async def _away_upstreams(self) -> dict[str, str]:
        engines = self._fleet.engines.values()
        away = {engine.url: engine.health.outage for engine in engines if engine.health.outage is not None}
        for engine in engines:
            # Health probes are less frequent than calls of this command.
            view = engine.prefix_view() if engine.url not in away else None
            failure = await view.failure() if view is not None else None
            if failure is not None:
                away[engine.url] = failure
        return away

    async def reset(self) -> ResetReport:
        self._all_views()
        engines: tuple[EngineResetResult, ...] = ()
        if self._fleet.mirrored_engines():
            others = [engine for engine in self._fleet.engines.values() if engine.prefix_view() is None]
            engines = tuple(await asyncio.gather(*map(reset_engine, others)))
        engines += tuple([await view.reset() for view in self._slot_views()])
        return ResetReport(all(result.reset for result in engines), engines=engines)

    async def explain(self, request: ApiRequest) -> PrefixReport | None:
        request = self._fleet.with_hints(request)
        engines = self._fleet.engines_of(request.route)
        parts: list[MirrorView | FleetEngine] = [view for view in self._mirror_views() if view.engine in engines]
        answered = await asyncio.gather(*(part.explain(request) for part in [*parts, *engines]))
        reports = [report for report in answered if report is not None]
        known = [report for report in reports if report.engine is not None]
        if not known:
            return next((report for report in reports if report.prompt_tokens is not None), next(iter(reports), None))
        reusable = {report.engine: report.reusable_tokens for report in known if report.engine is not None}
        return replace(max(known, key=lambda report: report.reusable_tokens), engines=reusable)


def _sum_pools(mirrored: Sequence[PoolReport], metrics: Sequence[EngineMetrics], num_engines: int) -> PoolReport:
    def total(name: str) -> Any:
        values = [value for engine_metrics in metrics if (value := getattr(engine_metrics, name)) is not None]
        return sum(values) if len(values) == num_engines else None

    def count(name: str) -> int | None:
        counts = [count for pool in mirrored if (count := getattr(pool, name)) is not None]
        return sum(counts) if counts else None

    blocks, queries, hits, usage = map(total, ("num_blocks", "queries", "hits", "usage"))
    usage = None if usage is None else usage / num_engines
    sizes = [pool.block_size for pool in mirrored] + [engine_metrics.block_size for engine_metrics in metrics]
    return PoolReport(
        num_blocks=blocks,
        block_size=next((size for size in sizes if size is not None), None),
        cached=count("cached"),
        used=None if usage is None or blocks is None else round(usage * blocks),
        usage=usage,
        queries=queries,
        hits=hits,
        hit_rate=hits / queries if queries and hits is not None else None,
        evictions=count("evictions"),
        distinct=count("distinct"),
        offloaded=dict(sum((Counter(pool.offloaded) for pool in mirrored), Counter[str]())),
    )


async def reset_engine(engine: FleetEngine) -> EngineResetResult:
    """Reset an engine's prefix cache and its mirror. Raises NoPrefixCache if the engine cannot reset its cache by request."""
    resets = engine.mirror.num_resets() if engine.mirror is not None else []
    for path in _RESET_PATHS:
        try:
            status, reply = await engine.client.call_json("POST", path, seconds=_RESET_SECONDS)
        except KvproxyError as error:
            return EngineResetResult(engine.url, False, error.message)
        if status in (404, 405):
            continue
        failure = f"it answered {status}" if status >= 400 else None
        if field(reply, "success") is False:
            failure = "its prefix cache is in use: try again when no request is running"
        if failure is None and engine.mirror is not None:
            engine.mirror.clear_after_reset(resets)
        return EngineResetResult(engine.url, failure is None, failure)
    raise NoPrefixCache(f"{engine.url} has no {_RESET_PATHS[0]}: start vLLM with VLLM_SERVER_DEV_MODE=1")
