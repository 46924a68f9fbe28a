"""Figures in Prometheus' text format, in a registry of the app's own."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvproxy.blocks.stats import PoolStats

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


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
        self._lookups = Gauge(
            "kvproxy_semantic_lookups", "Lookups of similar questions by what came of them.", ["outcome"],
            registry=self._registry,
        )  # fmt: skip
        self._compared = Gauge(
            "kvproxy_compared_answers", "Fresh answers compared with cached ones by result.", ["result"],
            registry=self._registry,
        )  # fmt: skip
        self._entries = Gauge("kvproxy_cache_entries", "Stored responses.", registry=self._registry)

    def answered(self, endpoint: str, layer: str, status: int, seconds: float) -> None:
        """Count one answer; `layer` is exact, semantic, forward or error."""
        self._requests.labels(endpoint, layer, str(status)).inc()
        self._seconds.labels(layer).observe(seconds)

    def semantic(self, lookups: Mapping[str, int], compared: Mapping[str, int]) -> None:
        """Take over the counts of semantic decisions."""
        for outcome, count in lookups.items():
            self._lookups.labels(outcome).set(count)
        for result, count in compared.items():
            self._compared.labels(result).set(count)

    def render(self, pool: PoolStats | None, entries: int) -> bytes:
        """The exposition text with the caches' present state."""
        self._entries.set(entries)
        if pool is not None:
            for state in ("free", "cached", "used"):
                self._blocks.labels(state).set(getattr(pool, state))
            for name in ("queries", "hits", "evictions"):
                self._totals.labels(name).set(getattr(pool, name))
        return generate_latest(self._registry)
