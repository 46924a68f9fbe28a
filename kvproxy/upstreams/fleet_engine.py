"""One upstream of the fleet: its mirror, its load, and its health."""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvproxy.apis.api_request import ApiRequest
from kvproxy.backends.protocol import RelayedResponse, ServingUpstream
from kvproxy.backends.reports import EngineMetrics, PrefixReport
from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.doors import UPSTREAMS
from kvproxy.errors import KvproxyError, SettingsError, UpstreamError
from kvproxy.settings import Settings, UpstreamServer
from kvproxy.upstreams.client import UpstreamClient
from kvproxy.upstreams.engine_metrics import read_metrics
from kvproxy.upstreams.generated_tokens import TokenRestorer
from kvproxy.upstreams.health import Health
from kvproxy.upstreams.kind import PrefixView, UpstreamKind
from kvproxy.upstreams.load_times import LoadTimes
from kvproxy.upstreams.mirror.prefix_match import MirrorMatch
from kvproxy.upstreams.mirror.prompt_hashes import HashedPrompt
from kvproxy.upstreams.mirror.reuse_limits import explain_reuse_limits
from kvproxy.upstreams.mirror_monitor import MirrorMonitor, RecentPredictions, TokenizingFailures
from kvproxy.upstreams.pending_prefixes import PendingPrefixes
from kvproxy.upstreams.refused_cache_fields import RefusedCacheFields
from kvproxy.upstreams.routing import EngineCandidate, EngineLoad, engine_order, rank_engines
from kvproxy.upstreams.status import EngineStatus, ReuseStats

if TYPE_CHECKING:
    from kvproxy.upstreams.mirror.mirror import Mirror

_FIXED_SETTINGS = "kv_events", "kv_replay", "hash_algorithm", "hash_seed", "kind"
_MAX_MODELS = 64
_OTHER_MODELS = "others"
_METRICS_RETRY_SECONDS = 300.0
_MISSING_METRICS_RETRY_SECONDS = 86_400.0  # Of servers that also lack `/health`.


@dataclass(frozen=True, slots=True)
class EnginePrediction:
    """The tokens of a prompt that an engine should reuse.

    Attributes:
        tokens: prompt tokens that it has in all media; None if unknown.
        loaded: those that it must load from other media than the GPU, by medium.
        pending_tokens: end of the prefix whose last blocks it computes for other requests; 0 if there are none.
        rank: data-parallel rank for the request; None if the engine chooses.
        uncached: hashes of the prompt's blocks after `tokens`.
        is_trusted: the latest predictions were right, so routing uses them.
    """

    tokens: int | None = None
    loaded: Mapping[str, int] = field(default_factory=dict)
    pending_tokens: int = 0
    rank: int | None = None
    uncached: Sequence[int] = ()
    is_trusted: bool = True

    @property
    def matched_tokens(self) -> int | None:
        """The prefix for routing."""
        tokens = self.tokens if self.is_trusted else None
        return max(tokens or 0, self.pending_tokens) or tokens


class Computation:
    """A request in flight, as the load, the pending prefix, and the measured times of its engine and rank."""

    def __init__(self, engine: "FleetEngine", prediction: EnginePrediction, uncached_tokens: int) -> None:
        self._engine = engine
        self._prediction = prediction
        self._uncached_tokens = uncached_tokens
        self._was_alone = engine.load.requests == 0
        self._started = time.monotonic()
        self._loads = [engine.load.add_request(uncached_tokens)]
        if prediction.rank is not None:
            self._loads.append(engine.rank_load(prediction.rank).add_request(uncached_tokens))
        self._pending = engine.pending(prediction.rank).add(prediction.uncached) if prediction.uncached else None

    def on_first_chunk(self, is_measured: bool) -> None:
        for load in self._loads:
            load.finish_prefill()
        if self._pending is not None:
            self._pending.expect_events()
        if is_measured and self._was_alone and self._engine.load.requests == 1:
            seconds = time.monotonic() - self._started
            self._engine.load_times.add(seconds, self._uncached_tokens, self._prediction.loaded)

    def finish(self) -> None:
        for load in self._loads:
            load.finish()
        if self._pending is not None:
            self._pending.fail()


class FleetEngine:
    """An upstream with its mirror, load, and health. Raises SettingsError if the address of its KV events is invalid."""

    def __init__(self, server: UpstreamServer, settings: Settings) -> None:
        routing = settings.routing
        self.url = server.url
        self.weight = server.weight
        self._server = server
        self.client = UpstreamClient(server, settings.forward, settings.limits)
        self.health = Health(self.client, routing.eject_after, routing.health_timeout, routing.health_interval)
        self.client.on_new_key = self.health.record_new_key
        self.load = EngineLoad()
        self.retried = self.errors = 0
        self.refused_fields = RefusedCacheFields(self.url)
        self.loaded: Counter[str] = Counter()
        self._pending: dict[int | None, PendingPrefixes] = {}
        self.load_times = LoadTimes()
        self._recent_predictions = RecentPredictions()
        self._rank_loads: dict[int, EngineLoad] = {}
        self.mirror = _make_mirror(server)
        self._generated = None if self.mirror is None else TokenRestorer(self.client, self.mirror)
        self.reuse: dict[str, ReuseStats] = {}
        self._kind = self._create_kind(server, settings)
        self._monitor = None if self.mirror is None else MirrorMonitor(server, self.mirror)
        self._problems: list[str] = []
        self._hash_advice: str | None = None
        self._tokenizing = TokenizingFailures(self.url)
        self._metrics: tuple[float, EngineMetrics] | None = None
        self._metrics_timeout = routing.health_timeout
        self._next_metrics = 0.0

    @property
    def models(self) -> tuple[str, ...]:
        """Names and patterns of its models; without any, it serves all models that no other upstream names."""
        return self._server.models

    def can_reload(self, server: UpstreamServer) -> bool:
        """Whether `reload` can apply changed settings; else another engine must replace this one."""
        return all(getattr(self._server, name) == getattr(server, name) for name in _FIXED_SETTINGS)

    def reload(self, server: UpstreamServer, settings: Settings, credentials: tuple[str | None, str | None]) -> None:
        """Use changed settings for new requests. See `UpstreamClient.reload`."""
        self._server = server
        self.weight = server.weight
        self.client.reload(server, settings.forward, credentials)

    def _create_kind(self, server: UpstreamServer, settings: Settings) -> UpstreamKind:
        if server.kind is None and self.mirror is not None:
            return UpstreamKind(self.client, settings)
        # Our own kind detects its servers.
        kind: UpstreamKind = UPSTREAMS.create(server.kind or next(iter(UPSTREAMS.built_in)), self.client, settings)
        return kind

    def prefix_view(self) -> PrefixView | None:
        return self._kind.prefix_view()

    async def explain(self, request: ApiRequest) -> PrefixReport | None:
        return await self._kind.explain(request)

    async def start(self) -> None:
        self.client.open()
        if self.mirror is not None:
            await self.mirror.start()

    async def close(self) -> None:
        if self.mirror is not None:
            await self.mirror.close()
        await self._kind.close()
        await self.client.close()

    async def probe(self) -> None:
        self.health.log_changes()
        if not self.health.is_probe_due:
            return
        await self.health.probe()
        await self._kind.probe(self.health.error)

    async def with_generated_tokens(self, request: ApiRequest) -> ApiRequest:
        """Restore the tokens that vLLM generated for earlier answers, if the request's rule enables `repair_history`."""
        if self._generated is None or not request.control.rule.repair_history:
            return request
        return await self._generated.restore(request)

    async def send(self, request: ApiRequest) -> RelayedResponse:
        placement = await self._kind.place(request)
        if placement is None:
            return await self.client.send(request)
        try:
            reply = await self.client.send(placement.request)
        except BaseException:
            placement.abandon()
            raise
        placement.record_response(reply)
        reply.served_by = self.serving_upstream(placement.predicted_tokens, placement.uncached_tokens)
        return reply

    def record_failure(self, error: UpstreamError, *, may_eject: bool = True) -> None:
        """Record a request without a response."""
        self.errors += 1
        if not may_eject:
            return
        record = self.health.record_failure if error.unsent else self.health.record_failed_request
        record(error.message)

    def record_response(self, reply: RelayedResponse) -> None:
        """Record the status of a response, and, at its end, whether it is complete."""
        self.errors += reply.status >= 500
        reply.on_broken.add(self.record_broken_response)
        reply.on_complete.add(self.health.record_complete_response)

    def record_broken_response(self) -> None:
        """Record a response that broke off after it began, which no other upstream can continue."""
        self.errors += 1
        self.health.record_broken_response(f"{self.url} broke off a response that it had begun")

    def record_tokenizing(self, failure: str | None) -> None:
        """Record whether the server tokenized a prompt: None for a success."""
        self._tokenizing.record(failure)

    async def monitor(self) -> None:
        await self.client.reload_key_file()
        if time.monotonic() >= self._next_metrics:
            try:
                status, page = await self.client.call("GET", "/metrics", seconds=self._metrics_timeout)
                text = page.decode("utf-8", "replace")
                metrics = await asyncio.to_thread(read_metrics, text) if status == 200 else None
            except KvproxyError:
                pass  # Keep the last metrics; their age is shown.
            except ValueError:
                self._next_metrics = time.monotonic() + self._metrics_retry_seconds()
            else:
                self._metrics = None if metrics is None else (time.monotonic(), metrics)
                if self.mirror is not None and metrics is not None and metrics.match_unit is not None:
                    self.mirror.match_unit = metrics.match_unit
                self._next_metrics = 0.0 if metrics is not None else time.monotonic() + self._metrics_retry_seconds()
        if self._monitor is not None:
            up = not self.health.failures
            metrics = self.metrics()
            self._problems = self._monitor.find_problems(is_up=up, metrics=metrics, reuse=self.reuse)
            self._hash_advice = self._monitor.hash_advice(metrics)

    def _metrics_retry_seconds(self) -> float:
        return _MISSING_METRICS_RETRY_SECONDS if self.health.lacks_route else _METRICS_RETRY_SECONDS

    def metrics(self) -> EngineMetrics | None:
        if self._metrics is None:
            return None
        reported_at, metrics = self._metrics
        return replace(metrics, age=round(time.monotonic() - reported_at, 1), engine=self.url)

    def predict(self, prompt: HashedPrompt | None, affinity: bytes) -> EnginePrediction:
        """Predict this engine's reuse of a prompt. `affinity` is the key of `engine_order`. Call `compute_hashes` first."""
        mirror = self.mirror
        if mirror is None or prompt is None:
            return EnginePrediction()
        matches = mirror.match_ranks(prompt)
        if ranks := self._ranks(matches):
            predictions = [self._predict_rank(rank, matches.get(rank), prompt, mirror) for rank in ranks]
            return self._choose_rank(predictions, len(prompt.tokens), affinity)
        best = max(matches.values(), key=lambda match: match.reusable_tokens, default=None)
        return self._predict_rank(None, best, prompt, mirror)

    def _predict_rank(
        self, rank: int | None, match: MirrorMatch | None, prompt: HashedPrompt, mirror: "Mirror"
    ) -> EnginePrediction:
        """Predict the reuse of a rank, or of an engine that chooses the rank itself, with the blocks in computation there."""
        tokens = 0 if match is None else match.reusable_tokens
        unit = mirror.reuse_unit()
        _, hashes = prompt.block_hashes(mirror.hasher, unit)
        uncached = hashes[tokens // unit :]
        num_pending = self.pending(rank).prefix_length(uncached)
        pending_end = min((tokens // unit + num_pending) * unit, len(prompt.tokens) - 1)
        return EnginePrediction(
            tokens,
            {} if match is None else match.tiers.by_medium,
            pending_end if num_pending else 0,
            rank,
            uncached,
            is_trusted=not self._recent_predictions.is_unreliable,
        )

    def begin(self, prediction: EnginePrediction, uncached_tokens: int) -> Computation:
        """Count a request in flight or in the queue that makes this engine compute `uncached_tokens`."""
        return Computation(self, prediction, uncached_tokens)

    @property
    def has_ranks(self) -> bool:
        """Whether several data-parallel ranks share this URL, so that each request can name the best one."""
        return self.mirror is not None and len(self.mirror.subscribers) > 1

    def _ranks(self, matches: Collection[int | None]) -> list[int]:
        """Return the ranks that a request can name; none if the events name no rank, or only ranks of other publishers.

        A rank without blocks counts, too: it would never get any. A forged event may name a rank that does not exist.
        """
        if self.mirror is None or not self.has_ranks:
            return []
        ranks = [rank for rank, subscriber in enumerate(self.mirror.subscribers) if subscriber.has_valid_state]
        return ranks if any(rank in matches for rank in ranks) else []

    def _choose_rank(
        self, predictions: Sequence[EnginePrediction], prompt_tokens: int, affinity: bytes
    ) -> EnginePrediction:
        by_name = {str(prediction.rank): prediction for prediction in predictions}
        candidates = [
            EngineCandidate(
                name,
                by_name[name].matched_tokens,
                self.rank_load(int(name)).tokens,
                load_cost=self._load_cost(by_name[name]),
            )
            for name in engine_order(dict.fromkeys(by_name, 1.0), affinity)
        ]
        return by_name[rank_engines(candidates, prompt_tokens)[0].name]

    def pending(self, rank: int | None) -> PendingPrefixes:
        """Return the blocks in computation in a rank; None is for requests without a rank."""
        return self._pending.setdefault(rank, PendingPrefixes())

    def rank_load(self, rank: int) -> EngineLoad:
        return self._rank_loads.setdefault(rank, EngineLoad())

    def routing_candidate(self, prediction: EnginePrediction) -> EngineCandidate:
        cost = self._load_cost(prediction)
        return EngineCandidate(self.url, prediction.matched_tokens, self.load.tokens, self.weight, cost)

    def _load_cost(self, prediction: EnginePrediction) -> float:
        return self.load_times.load_cost(prediction.loaded) if prediction.is_trusted else 0.0

    def status(self) -> EngineStatus:
        mirror = self.mirror
        return EngineStatus(
            url=self.url,
            state=self.health.state,
            weight=self.weight,
            requests=self.load.requests,
            load=round(self.load.tokens),
            sent=self.client.sent,
            failures=self.health.failures,
            ejections=self.health.ejections,
            error=self.health.error,
            cached_blocks=None if mirror is None else mirror.report().cached,
            complete=None if mirror is None else mirror.is_complete,
            streams=() if mirror is None else tuple(mirror.streams()),
            reuse=self.reuse,
            metrics=self.metrics(),
            notes=(*self._problems, *self._tokenizing_problems(), *self._kind.problems()),
            advice=self._advice(),
            slots=self._kind.slots(),
            offloaded={} if mirror is None else mirror.report().offloaded,
            loaded=dict(self.loaded),
            load_costs=self.load_times.measured(),
            models=self.models,
            aliases=dict(self._server.aliases),
            ejected=self.health.ejected,
            retried=self.retried,
            errors=self.errors,
        )

    def _tokenizing_problems(self) -> list[str]:
        # A server that does not respond has this problem already.
        return [] if self.health.failures else self._tokenizing.problems()

    def _advice(self) -> tuple[str, ...]:
        drained = (
            "drained by an operator: kvproxy upstreams undrain sends it requests again"
            if self.health.draining
            else None
        )
        return (*self._kind.advice(), *filter(None, (drained, self.reuse_limits(), self._hash_advice)))

    def reuse_limits(self) -> str | None:
        """Return which prefixes the model cannot reuse, by its KV events and metrics; None if it can reuse most."""
        metrics = self.metrics()
        hit_unit = metrics.hit_unit if metrics is not None else None
        return explain_reuse_limits((), hit_unit) if self.mirror is None else self.mirror.reuse_limits(hit_unit)

    def serving_upstream(
        self,
        predicted_tokens: int | None,
        uncached_tokens: int,
        *,
        has_generated_tokens: bool = False,
        loaded: Mapping[str, int] | None = None,
    ) -> ServingUpstream:
        """Return this engine as the upstream of a request.

        The engine should reuse `predicted_tokens` prompt tokens (None: unknown), of which it loads those in `loaded` from
        other media than the GPU, and compute `uncached_tokens`.
        """

        def report_reuse(model: str, prompt_tokens: int, cached_tokens: int) -> None:
            # Invented model names must not fill the memory.
            name = model if model in self.reuse or len(self.reuse) < _MAX_MODELS else _OTHER_MODELS
            self.reuse.setdefault(name, ReuseStats()).add(prompt_tokens, cached_tokens, predicted_tokens)
            self.loaded.update(upstream.loaded_tokens(cached_tokens))
            if predicted_tokens is not None:
                self._recent_predictions.add(predicted_tokens > cached_tokens)
            if self._monitor is not None:
                self._monitor.count_computed_tokens(prompt_tokens - cached_tokens, reported=True)

        if self._monitor is not None:
            self._monitor.count_computed_tokens(uncached_tokens, reported=False)
        is_engine = self.mirror is not None or self._metrics is not None or predicted_tokens is not None
        block_size = self._metrics[1].block_size if self._metrics is not None else None
        upstream = ServingUpstream(
            self.url, predicted_tokens, report_reuse, is_engine, has_generated_tokens, block_size or 0, loaded or {}
        )
        return upstream


def _make_mirror(server: UpstreamServer) -> "Mirror | None":
    if server.kv_events is None:
        return None
    from kvproxy.upstreams.mirror.mirror import Mirror

    hasher = BlockHasher(server.hash_algorithm, server.hash_seed)
    try:
        return Mirror(server.kv_events, server.kv_replay, hasher=hasher)
    except ValueError as error:
        raise SettingsError(f"setting kv_events of {server.url}: {error}", param="kv_events") from None
