import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvproxy.apis.api_request import ApiRequest
from kvproxy.backends.prefix_cache import EngineMetrics, StreamStatus
from kvproxy.backends.protocol import RelayedResponse, ServingUpstream
from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.errors import KvproxyError, SettingsError
from kvproxy.privacy.encryption import load_cipher
from kvproxy.settings import Settings, UpstreamServer
from kvproxy.upstreams.client import UpstreamClient
from kvproxy.upstreams.engine_metrics import read_metrics
from kvproxy.upstreams.generated_tokens import TokenRestorer
from kvproxy.upstreams.health import Health
from kvproxy.upstreams.llama.server import LlamaServer
from kvproxy.upstreams.llama.slots import SlotsStatus
from kvproxy.upstreams.mirror.prefix_match import HashedPrompt
from kvproxy.upstreams.mirror_monitor import MirrorMonitor, ReuseStats
from kvproxy.upstreams.routing import EngineCandidate, EngineLoad

if TYPE_CHECKING:
    from kvproxy.upstreams.mirror.mirror import Mirror

_MAX_MODELS = 64
_OTHER_MODELS = "others"
_METRICS_RETRY_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class EngineStatus:
    url: str
    state: str
    weight: float
    requests: int  # Number of requests in flight.
    load: int  # Load of these requests, see `EngineLoad`.
    sent: int  # Number of requests since the proxy's start.
    failures: int  # Number of consecutive failures.
    ejections: int
    error: str | None
    cached_blocks: int | None
    complete: bool | None  # The mirror missed no event; None without a mirror.
    streams: tuple[StreamStatus, ...]
    reuse: dict[str, ReuseStats]
    metrics: EngineMetrics | None
    notes: tuple[str, ...]  # Problems with their fixes.
    advice: tuple[str, ...]
    slots: SlotsStatus | None


class FleetEngine:
    """An upstream with its mirror, load, and health. Raises SettingsError if the address of its KV events is invalid."""

    def __init__(self, server: UpstreamServer, settings: Settings) -> None:
        routing = settings.routing
        self.url = server.url
        self.weight = server.weight
        self.client = UpstreamClient(server, settings.forward, settings.limits)
        self.health = Health(self.client, routing.eject_after, routing.health_timeout)
        self.load = EngineLoad()
        self.sent = 0
        self.mirror = _make_mirror(server)
        self._generated = None if self.mirror is None else TokenRestorer(self.client, self.mirror)
        self.reuse: dict[str, ReuseStats] = {}
        self.llama: LlamaServer | None = None
        if self.mirror is None:
            # A server without KV events may be llama.cpp.
            cipher = load_cipher(settings.encryption)
            self.llama = LlamaServer(self.client, settings.slots, settings.data, cipher)
        self._monitor = None if self.mirror is None else MirrorMonitor(server, self.mirror)
        self._problems: list[str] = []
        self._metrics: tuple[float, EngineMetrics] | None = None
        self._metrics_timeout = routing.health_timeout
        self._next_metrics = 0.0

    async def start(self) -> None:
        self.client.open()
        if self.mirror is not None:
            await self.mirror.start()

    async def close(self) -> None:
        if self.mirror is not None:
            await self.mirror.close()
        if self.llama is not None:
            await self.llama.close()
        await self.client.close()

    async def probe(self) -> None:
        await self.health.probe()
        if self.llama is None:
            return
        if self.health.error is not None:
            # Another server may start at this URL.
            self.llama.is_identified = False
        elif not self.llama.is_identified:
            await self.llama.identify()

    async def with_generated_tokens(self, request: ApiRequest) -> ApiRequest:
        """Restore the tokens that vLLM generated for earlier answers, if the request's rule enables `repair_history`."""
        if self._generated is None or not request.control.rule.repair_history:
            return request
        return await self._generated.restore(request)

    async def send(self, request: ApiRequest) -> RelayedResponse:
        placement = None if self.llama is None else await self.llama.place(request)
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

    async def monitor(self) -> None:
        if time.monotonic() >= self._next_metrics:
            try:
                status, page = await self.client.call("GET", "/metrics", seconds=self._metrics_timeout)
                text = page.decode("utf-8", "replace")
                found = await asyncio.to_thread(read_metrics, text) if status == 200 else None
            except KvproxyError:
                pass  # Keep the last metrics; their age is shown.
            except ValueError:
                self._next_metrics = time.monotonic() + _METRICS_RETRY_SECONDS
            else:
                self._metrics = None if found is None else (time.monotonic(), found)
                self._next_metrics = 0.0 if found is not None else time.monotonic() + _METRICS_RETRY_SECONDS
        if self._monitor is not None:
            up = not self.health.failures
            self._problems = self._monitor.find_problems(is_up=up, metrics=self.metrics(), reuse=self.reuse)

    def metrics(self) -> EngineMetrics | None:
        if self._metrics is None:
            return None
        reported_at, metrics = self._metrics
        return replace(metrics, age=round(time.monotonic() - reported_at, 1), engine=self.url)

    def routing_candidate(self, prompt: HashedPrompt | None) -> EngineCandidate:
        """Return the length of the prompt's cached prefix (unknown without a prompt or a mirror), and the engine's load.

        Call `compute_hashes` first.
        """
        matched = None
        if self.mirror is not None and prompt is not None:
            match = self.mirror.match_prefix(prompt)
            matched = 0 if match is None else match[1].matched_tokens
        return EngineCandidate(self.url, matched, self.load.tokens, self.weight)

    def status(self) -> EngineStatus:
        mirror = self.mirror
        return EngineStatus(
            url=self.url,
            state=self.health.state,
            weight=self.weight,
            requests=self.load.requests,
            load=round(self.load.tokens),
            sent=self.sent,
            failures=self.health.failures,
            ejections=self.health.ejections,
            error=self.health.error,
            cached_blocks=None if mirror is None else mirror.report().cached,
            complete=None if mirror is None else mirror.is_complete,
            streams=() if mirror is None else tuple(mirror.streams()),
            reuse=self.reuse,
            metrics=self.metrics(),
            notes=(*self._problems, *(self.llama.problems() if self.llama else ())),
            advice=tuple(self.llama.advice()) if self.llama else (),
            slots=self.llama.status() if self.llama else None,
        )

    def serving_upstream(
        self, predicted_tokens: int | None, uncached_tokens: int, *, has_generated_tokens: bool = False
    ) -> ServingUpstream:
        """Return this engine as the upstream of a request.

        The engine should reuse `predicted_tokens` prompt tokens (None: unknown), and compute `uncached_tokens`.
        """

        def report_reuse(model: str, prompt_tokens: int, cached_tokens: int) -> None:
            # Invented model names must not fill the memory.
            name = model if model in self.reuse or len(self.reuse) < _MAX_MODELS else _OTHER_MODELS
            self.reuse.setdefault(name, ReuseStats()).add(prompt_tokens, cached_tokens, predicted_tokens)
            if self._monitor is not None:
                self._monitor.count_computed_tokens(prompt_tokens - cached_tokens, reported=True)

        if self._monitor is not None:
            self._monitor.count_computed_tokens(uncached_tokens, reported=False)
        is_engine = self.mirror is not None or self._metrics is not None or predicted_tokens is not None
        block_size = self._metrics[1].block_size if self._metrics is not None else None
        return ServingUpstream(
            self.url, predicted_tokens, report_reuse, is_engine, has_generated_tokens, block_size or 0
        )


def _make_mirror(server: UpstreamServer) -> "Mirror | None":
    if server.kv_events is None:
        return None
    from kvproxy.upstreams.mirror.mirror import Mirror

    hasher = BlockHasher(server.hash_algorithm, server.hash_seed)
    try:
        return Mirror(server.kv_events, server.kv_replay, hasher=hasher)
    except ValueError as error:
        raise SettingsError(f"setting kv_events of {server.url}: {error}", param="kv_events") from None
