"""Detects problems of an engine's mirror, such as missing KV events, and names their fixes."""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kvproxy.backends.reports import EngineMetrics
from kvproxy.settings import UpstreamServer
from kvproxy.upstreams.mirror.event_decoder import GPU
from kvproxy.upstreams.status import MIN_PREDICTIONS, ReuseStats

if TYPE_CHECKING:
    from kvproxy.upstreams.mirror.mirror import Mirror

GRACE_SECONDS = 10.0  # Without a connection, or without events, before a problem is reported.
RESTART_REPORT_SECONDS = 600.0
_PARTIAL_BLOCK = 64  # Maximum tokens at a prompt's end for which no event is published.
_MIN_COMPUTED = 1000  # Prompt tokens without an event before a problem is reported.
_CONFIG = '--kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq", ...}\', see docs/mirror.md'
_MAX_RECENT = 100
_MAX_DISTRUSTED = 0.25  # Share of the latest predictions that may be too high until routing ignores the mirror.
_MAX_TOKENIZING_FAILURES = 3
_log = logging.getLogger("kvproxy")


class RecentPredictions:
    """Whether routing can trust a mirror, by the latest predictions that the engine's reports confirm or refute.

    Forged or lost events cause predictions that are too high.
    """

    def __init__(self) -> None:
        self._too_high: deque[bool] = deque(maxlen=_MAX_RECENT)

    def add(self, too_high: bool) -> None:
        self._too_high.append(too_high)

    @property
    def is_unreliable(self) -> bool:
        return len(self._too_high) >= MIN_PREDICTIONS and sum(self._too_high) > _MAX_DISTRUSTED * len(self._too_high)


class TokenizingFailures:
    """Whether a server tokenizes prompts. Without their tokens, its mirror predicts nothing."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._failures = 0
        self._last = ""
        self._has_succeeded = False

    def record(self, failure: str | None) -> None:
        if failure is None:
            self._failures, self._has_succeeded = 0, True
            return
        had_problems = bool(self.problems())
        self._failures, self._last = self._failures + 1, failure
        for problem in self.problems() if not had_problems else ():
            _log.warning("%s: %s", self._url, problem)

    def problems(self) -> list[str]:
        # A busy server may respond too late now and then.
        if self._failures < (_MAX_TOKENIZING_FAILURES if self._has_succeeded else 1):
            return []
        return [
            "prompts are routed without predictions, unless another upstream tokenizes them, because their tokens are"
            f" unknown: {self._last}"
        ]


class MirrorMonitor:
    def __init__(self, server: UpstreamServer, mirror: "Mirror", clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._mirror = mirror
        self._clock = clock
        self._computed = 0
        self._messages = 0
        self._last_message = self._last_connected = clock()
        self._restarts = 0
        self._restarted: float | None = None
        self._known: frozenset[str] = frozenset()

    def count_computed_tokens(self, tokens: int, *, reported: bool) -> None:
        """Count prompt tokens that the engine computed: it must publish KV events for them.

        Numbers that the engine did not report are estimates, which are ignored after the first event.
        """
        if reported or not self._messages:
            self._computed += max(0, tokens - _PARTIAL_BLOCK)

    def find_problems(
        self, *, is_up: bool, metrics: EngineMetrics | None, reuse: Mapping[str, ReuseStats]
    ) -> list[str]:
        """Return a sentence for each current problem, and log the new ones. `reuse` has the engine's statistics by model."""
        self._read_streams()
        problems: dict[str, str] = {}
        now, server = self._clock(), self._server
        if is_up and now - self._last_connected > GRACE_SECONDS:
            problems["disconnected"] = (
                f"nothing publishes at {server.kv_events}: start the engine with {_CONFIG}, or correct kv_events"
            )
        elif self._computed > _MIN_COMPUTED and now - self._last_message > GRACE_SECONDS:
            problems["no_events"] = _no_events_error(metrics)
        if any(stream.replay_fails for stream in self._mirror.streams()):
            problems["replay"] = (
                f"the replay port {server.kv_replay} does not respond, so missed events are lost: correct kv_replay, or set"
                " replay_endpoint in its --kv-events-config"
            )
        if self._restarted is not None and now - self._restarted < RESTART_REPORT_SECONDS:
            problems["restart"] = (
                f"the engine restarted {now - self._restarted:.0f} s ago with an empty prefix cache: read its log if the"
                " restart was not planned"
            )
        self._check_removals(metrics)
        if unknown := self._mirror.unknown_names():
            names = ", ".join(f"{name} ({count:,})" for name, count in unknown.items())
            problems["unknown"] = f"kvproxy ignores KV events with unknown names, so predictions may be wrong: {names}"
        for model, figures in reuse.items():
            if figures.is_unreliable:
                problems["predictions"] = (
                    f"the mirror is wrong: {figures.too_high} of {figures.predictions} predictions for {model} were too high;"
                    " kvproxy blocks reset empties the caches and the mirror, and kv_replay recovers lost events"
                    f"{self._missing_removals()}"
                )
        for name in problems.keys() - self._known:
            _log.warning("%s: %s", server.url, problems[name])
        self._known = frozenset(problems)
        return list(problems.values())

    def _check_removals(self, metrics: EngineMetrics | None) -> None:
        """Count one removal per block, if the mirror has more copies of blocks than the engine's pool has blocks.

        Then the engine publishes the removal of the last copy only. The states of a model with state-space layers may have
        several hashes per block, so their number proves nothing.
        """
        if metrics is None or metrics.kind != "vllm" or not metrics.num_blocks:
            return
        ranks = self._mirror.state().pools_by_rank().values()
        has_states = any(pool.kind == "mamba" for pools in ranks for pool in pools)
        if not has_states and (self._mirror.report().cached or 0) > metrics.num_blocks:
            self._mirror.count_last_removals()

    def _missing_removals(self) -> str:
        """Name the media behind the GPU of which the engine never published a removed block."""
        pools = [
            pool for pools in self._mirror.state().pools_by_rank().values() for pool in pools if pool.medium != GPU
        ]
        removed = {pool.medium for pool in pools if pool.num_removed}
        media = sorted({pool.medium for pool in pools if pool.blocks} - removed)
        if not media:
            return ""
        return (
            f"; no removed block of {', '.join(media)} was published: LMCache in the engine's process publishes none, and"
            " LMCache's server does"
        )

    def _read_streams(self) -> None:
        now, streams = self._clock(), self._mirror.streams()
        messages = sum(stream.batches + stream.duplicates + stream.malformed for stream in streams)
        if messages != self._messages or not self._computed:
            self._messages, self._computed, self._last_message = messages, 0, now
        if all(stream.connected for stream in streams):
            self._last_connected = now
        restarts = sum(stream.restarts for stream in streams)
        if restarts > self._restarts:
            self._restarts, self._restarted = restarts, now

    def hash_advice(self, metrics: EngineMetrics | None) -> str | None:
        """Return the cost of block hashes that do not match, and the fix; None if they match, or no block is known yet."""
        # SGLang's algorithm has no setting.
        if self._mirror.hashes_match() is not False or (metrics is not None and metrics.kind == "sglang"):
            return None
        configured = self._server.hash_algorithm
        engine = (metrics and metrics.hash_algorithm) or "its --prefix-caching-hash-algo"
        algorithm = "" if engine == configured else f"hash_algorithm to {engine}, and "
        return (
            f"prompts are compared by token, because the engine's block hashes do not match {configured} with the configured"
            " seed: predictions for the GPU are as good, but take more processor time, and blocks that are published without"
            f" tokens are unknown. To compare hashes, set {algorithm}hash_seed to its PYTHONHASHSEED; without this variable,"
            " the engine's seed may be random, so set it there"
        )


def _no_events_error(metrics: EngineMetrics | None) -> str:
    if metrics is not None and metrics.prefix_caching is False:
        return "the prefix cache is disabled, so there are no events: start the engine with --enable-prefix-caching"
    return f"the engine responds but publishes no events: start it with {_CONFIG}"
