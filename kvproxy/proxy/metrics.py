"""Figures in Prometheus' text format, in a registry of the app's own."""

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvproxy.blocks.stats import PoolStats
from kvproxy.generation import Delta

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """What a proxy counts."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        names = ["endpoint", "layer", "status"]
        self._requests = Counter("kvproxy_requests", "Requests answered.", names, registry=self._registry)
        self._seconds = Histogram(
            "kvproxy_first_byte_seconds",
            "Time until an answer begins.",
            ["layer"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._blocks = Gauge("kvproxy_blocks", "Blocks of the pool by state.", ["state"], registry=self._registry)
        self._totals = Gauge(
            "kvproxy_prefix_cache", "Totals of the prefix cache: prompt tokens looked up and found, blocks evicted.", ["of"],
            registry=self._registry,
        )  # fmt: skip
        self._queue = self._histogram("queue", "Time until a request gets blocks.")
        self._first_token = self._histogram("ttft", "Time to first token of the embedded engine.")
        self._per_token = self._histogram("tpot", "Time per output token after the first.")
        self._tokens = Counter(
            "kvproxy_tokens", "Tokens: prompt (pool, tier, computed) and generated.", ["kind"], registry=self._registry
        )
        self._tiers = Gauge(
            "kvproxy_tier", "Figures of each tier: chunks and bytes kept; chunks found, missed, damaged, failed, dropped.",
            ["tier", "of"], registry=self._registry,
        )  # fmt: skip
        self._lookups = Gauge(
            "kvproxy_semantic_lookups", "Lookups of similar questions by what came of them.", ["outcome"],
            registry=self._registry,
        )  # fmt: skip
        self._compared = Gauge(
            "kvproxy_compared_answers", "Fresh answers compared with cached ones by result.", ["result"],
            registry=self._registry,
        )  # fmt: skip
        self._upstreams = Gauge(
            "kvproxy_upstream", "Upstreams: up (1 or 0), requests under way, load in tokens, requests sent, ejections.",
            ["upstream", "of"], registry=self._registry,
        )  # fmt: skip
        self._entries = Gauge("kvproxy_cache_entries", "Stored responses.", registry=self._registry)

    def answered(self, endpoint: str, layer: str, status: int, seconds: float) -> None:
        """Count one answer; `layer` is exact, semantic, forward or error."""
        self._requests.labels(endpoint, layer, str(status)).inc()
        self._seconds.labels(layer).observe(seconds)

    def upstream(self, status: dict[str, Any]) -> None:
        """Take over what `kvproxy upstreams` shows of one."""
        self._upstreams.labels(status["url"], "up").set(status["state"] == "up")
        for name in ("requests", "load", "sent", "ejections", "cached_blocks"):
            if status[name] is not None:
                self._upstreams.labels(status["url"], name).set(status[name])

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"kvproxy_{name}_seconds", text, buckets=_SECONDS, registry=self._registry)

    def generated(self, last: Delta) -> None:
        """Count one answer of the embedded engine by its last piece."""
        usage, timing = last.usage, last.timing
        self._tokens.labels("generated").inc(usage.completion_tokens)
        if timing is not None and usage.completion_tokens > 1:
            self._per_token.observe((timing.total - timing.first_token) / (usage.completion_tokens - 1))
        if last.index:
            return
        self._tokens.labels("pool").inc(usage.cached_tokens - usage.tier_tokens)
        self._tokens.labels("tier").inc(usage.tier_tokens)
        self._tokens.labels("computed").inc(usage.prompt_tokens - usage.cached_tokens)
        if timing is not None:
            self._queue.observe(timing.queue)
            self._first_token.observe(timing.first_token)

    def semantic(self, lookups: Mapping[str, int], compared: Mapping[str, int]) -> None:
        """Take over the counts of semantic decisions."""
        for outcome, count in lookups.items():
            self._lookups.labels(outcome).set(count)
        for result, count in compared.items():
            self._compared.labels(result).set(count)

    def render(self, pool: PoolStats | None, entries: int, tiers: Sequence[Mapping[str, Any]] = ()) -> bytes:
        """The exposition text with the caches' present state."""
        for row in tiers:
            for name in ("chunks", "bytes", "hits", "misses", "damaged", "errors", "dropped", "evictions", "available"):
                self._tiers.labels(row["name"], name).set(row[name])
        self._entries.set(entries)
        if pool is not None:
            for state in ("free", "cached", "used"):
                self._blocks.labels(state).set(getattr(pool, state))
            for name in ("queries", "hits", "evictions"):
                self._totals.labels(name).set(getattr(pool, name))
        return generate_latest(self._registry)
