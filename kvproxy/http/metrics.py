"""Prometheus metrics, in a registry per app."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvproxy.blocks.stats import PoolStats
from kvproxy.errors import KvproxyError
from kvproxy.exchange import Exchange
from kvproxy.generation import Delta
from kvproxy.index.policies.policy import LearningSummary
from kvproxy.journal.savings import Saving
from kvproxy.tiers.store import TierStats
from kvproxy.upstreams.engine import EngineStatus

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_MOST_CLIENTS = 200
_OTHERS = "(others)"
"""Label of all clients beyond the first 200. No client can have this name."""


@dataclass(frozen=True, slots=True)
class Described:
    """Description of a metric, for the docs."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...]


class Metrics:
    """The metrics of a proxy.

    Attributes:
        described: all metrics, in their order.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.described: list[Described] = []
        self._requests = self._counter("requests", "Requests answered.", "endpoint", "layer", "status")
        self._first_byte = self._histogram("first_byte", "Time to first byte.", "layer")
        self._blocks = self._gauge("blocks", "Blocks of the pool by state.", "state")
        self._totals = self._gauge(
            "prefix_cache", "Totals of the prefix cache: prompt tokens looked up and found, blocks evicted.", "of"
        )
        self._queue = self._histogram("queue", "Time until a request is scheduled.")
        self._first_token = self._histogram("ttft", "Time to first token of the embedded engine.")
        self._per_token = self._histogram("tpot", "Time per output token after the first.")
        self._tokens = self._counter("tokens", "Tokens: prompt (pool, tier, computed) and generated.", "kind")
        self._tiers = self._gauge(
            "tier",
            "Statistics of each tier: chunks, bytes, hits, misses, damaged, errors, dropped.",
            "tier",
            "of",
        )
        self._lookups = self._gauge("semantic_lookups", "Semantic lookups by result.", "outcome")
        self._stale = self._gauge("stale", "Stale responses by reason, and revalidations by result.", "of")
        self._compared = self._gauge(
            "compared_answers", "Comparisons of fresh and cached responses by result.", "result"
        )
        self._learned = self._gauge(
            "learned",
            "State of the policy learned: namespaces, serving, observations, served, expected_wrong, would_serve, bound,"
            " max_error.",
            "of",
        )
        self._upstreams = self._gauge(
            "upstream",
            "Upstreams: up (1 or 0), requests in flight, load in tokens, requests sent, ejections.",
            "upstream",
            "of",
        )
        self._engines = self._gauge(
            "engine",
            "Statistics that upstreams report: num_blocks, usage, running, waiting, queries, hits, age in seconds.",
            "upstream",
            "of",
        )
        self._slots = self._gauge(
            "slots",
            "Slots of llama.cpp upstreams: slots, cached tokens, files that can be restored (saved), saved_bytes, saves,"
            " restores, and restores that a response confirmed (shown).",
            "upstream",
            "of",
        )
        self._reuse = self._gauge(
            "reported_reuse",
            "Reuse that upstreams report: responses with a report (reports), prompt_tokens, cached_tokens; predictions,"
            " and those that were exact, too_high, and too_low.",
            "upstream",
            "model",
            "of",
        )
        self._entries = self._gauge("cache_entries", "Stored responses.")
        self._client_requests = self._counter(
            "client_requests", "Responses to each client, by status.", "client", "status"
        )
        self._client_tokens = self._counter("client_tokens", "Computed tokens of each client.", "client")
        self._clients: set[str] = set()
        self._limited = self._counter("limited", "Limits that were reached, by the name of the setting.", "limit")
        self._saved = self._gauge(
            "saved",
            "Savings since the journal began: answered (requests), prompt_tokens, completion_tokens, reused_tokens,"
            " seconds, money.",
            "layer",
            "of",
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        self.described.append(Described(f"kvproxy_{name}_total", "counter", text, labels))
        return Counter(f"kvproxy_{name}", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        self.described.append(Described(f"kvproxy_{name}", "gauge", text, labels))
        return Gauge(f"kvproxy_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        self.described.append(Described(f"kvproxy_{name}_seconds", "histogram", text, labels))
        return Histogram(f"kvproxy_{name}_seconds", text, labels, buckets=_SECONDS, registry=self._registry)

    def client(self, name: str, status: int) -> None:
        """Count a response to a client."""
        self._client_requests.labels(self._client(name), str(status)).inc()

    def finished(self, exchange: Exchange) -> None:
        """Count a finished exchange."""
        if exchange.api is None or exchange.layer == "renewed":
            return
        self._requests.labels(exchange.api, exchange.layer, str(exchange.status)).inc()
        self._first_byte.labels(exchange.layer).observe((exchange.first_byte or exchange.ended) - exchange.started)

    def client_tokens(self, name: str, tokens: int) -> None:
        """Count the computed tokens of a client."""
        self._client_tokens.labels(self._client(name)).inc(tokens)

    def _client(self, name: str) -> str:
        """The label of a client. The number of labels is bounded."""
        if name not in self._clients and len(self._clients) >= _MOST_CLIENTS:
            return _OTHERS
        self._clients.add(name)
        return name

    def limited(self, limit: str) -> None:
        """Count a limit that was reached."""
        self._limited.labels(limit).inc()

    def refused(self, error: KvproxyError) -> None:
        """Count an error that a limit caused."""
        if error.limit is not None:
            self.limited(error.limit)

    def generated(self, last: Delta) -> None:
        """Count a response of the embedded engine."""
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

    def pool(self, stats: PoolStats) -> None:
        """Set the statistics of the pool."""
        for state, count in (("free", stats.free), ("cached", stats.cached), ("used", stats.used)):
            self._blocks.labels(state).set(count)
        for name, total in (("queries", stats.queries), ("hits", stats.hits), ("evictions", stats.evictions)):
            self._totals.labels(name).set(total)

    def tiers(self, rows: Sequence[TierStats]) -> None:
        """Set the statistics of the tiers."""
        for row in rows:
            figures = {
                "chunks": row.chunks,
                "bytes": row.bytes,
                "hits": row.hits,
                "misses": row.misses,
                "damaged": row.damaged,
                "errors": row.errors,
                "dropped": row.dropped,
                "evictions": row.evictions,
                "available": row.available,
            }
            for name, value in figures.items():
                self._tiers.labels(row.name, name).set(value)

    def upstream(self, status: EngineStatus) -> None:
        """Set the statistics of an upstream."""
        figures = {
            "up": status.state == "up",
            "requests": status.requests,
            "load": status.load,
            "sent": status.sent,
            "ejections": status.ejections,
            "cached_blocks": status.cached_blocks,
        }
        for name, value in figures.items():
            if value is not None:
                self._upstreams.labels(status.url, name).set(value)
        for name, value in (asdict(status.figures) if status.figures is not None else {}).items():
            if isinstance(value, int | float):
                self._engines.labels(status.url, name).set(value)
        for name, value in (asdict(status.slots) if status.slots is not None else {}).items():
            self._slots.labels(status.url, name).set(value)
        for model, reuse in status.reuse.items():
            for name, value in asdict(reuse).items():
                self._reuse.labels(status.url, model, name).set(value)

    def semantic(self, lookups: Mapping[str, int], compared: Mapping[str, int], stale: Mapping[str, int]) -> None:
        """Set the counts of semantic lookups, comparisons, and stale responses."""
        for name, count in stale.items():
            self._stale.labels(name).set(count)
        for outcome, count in lookups.items():
            self._lookups.labels(outcome).set(count)
        for result, count in compared.items():
            self._compared.labels(result).set(count)

    def learned(self, overall: LearningSummary) -> None:
        """Set the state of the policy `learned`."""
        for name, value in asdict(overall).items():
            self._learned.labels(name).set(value)

    def entries(self, count: int) -> None:
        """Set the number of stored responses."""
        self._entries.set(count)

    def saved(self, savings: Sequence[Saving]) -> None:
        """Set the savings of the journal."""
        for saving in savings:
            for name in ("answered", "prompt_tokens", "completion_tokens", "reused_tokens", "seconds", "money"):
                value = getattr(saving, name)
                if value is not None:
                    self._saved.labels(saving.name, name).set(value)

    def render(self) -> bytes:
        """The metrics in text format."""
        return generate_latest(self._registry)
