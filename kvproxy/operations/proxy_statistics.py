"""Reads a proxy's statistics, and computes rates between two readings."""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvproxy.backends.reports import PrefixCacheStats
from kvproxy.errors import NoPrefixCache, NotFound
from kvproxy.layers import CACHES
from kvproxy.operations.blocks import block_statistics, list_tiers
from kvproxy.operations.client import ProxyClient
from kvproxy.operations.operation import DeclaredOperation, NoParameters, Parameters, Result, fields_of
from kvproxy.operations.upstreams import list_upstreams
from kvproxy.tiers.chunk_store import TierStats
from kvproxy.upstreams.status import EngineStatus

LAYERS = (*CACHES, "plugin", "prefix", "forward", "bypass", "refused", "disconnected", "error")
_LEARNED, _SAVINGS = "kvproxy_learned_policy_", "kvproxy_savings_"
# By metric: its field in `Totals`, and the label that groups its counts.
_COUNTS = {
    "kvproxy_semantic_lookups_total": ("lookups", "outcome"),
    "kvproxy_comparisons_total": ("compared", "result"),
    "kvproxy_limited_total": ("limited", "limit"),
}
_WORKING = {"kvproxy_store_up": "store_up", "kvproxy_journal_up": "journal_up"}


@dataclass(slots=True)
class Totals:
    """Statistics of a proxy since its start, from its metrics and its prefix cache.

    Attributes:
        entries: number of stored responses; None while the store fails.
        store_up: whether the store can be read and written.
        journal_up: the same of the journal; None without a journal.
        lost_records: number of journal records that could not be written.
        lookups, compared, limited: numbers by outcome, result, and limit.
        learned: statistics of the learned policy; empty without it.
        saved: savings by layer.
        blocks: None without a prefix cache that the proxy can inspect.
        proxies: number of proxies; with several, `learned`, `blocks`, and `tiers` are those of the first one.
    """

    entries: int | None = None
    store_up: bool | None = None
    journal_up: bool | None = None
    lost_records: int = 0
    lookups: dict[str, int] = field(default_factory=dict)
    compared: dict[str, int] = field(default_factory=dict)
    limited: dict[str, int] = field(default_factory=dict)
    learned: dict[str, float] = field(default_factory=dict)
    saved: dict[str, dict[str, float]] = field(default_factory=dict)
    blocks: PrefixCacheStats | None = None
    tiers: list[TierStats] = field(default_factory=list)
    proxies: int = 1


@dataclass(slots=True)
class Snapshot:
    """Statistics of a proxy at one moment.

    Attributes:
        at: time in seconds of the monotonic clock.
        requests, first_byte_seconds: by layer, the number of requests and the sum of their times to the first byte.
        errors: number of requests that the proxy or the upstream failed, by status; see `is_error`.
    """

    at: float
    errors: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    first_byte_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    totals: Totals = field(default_factory=Totals)

    def add_proxy(self, other: "Snapshot") -> None:
        """Add the requests of another proxy. The stored responses and the savings are those of one journal and store."""
        self.requests += other.requests
        self.errors += other.errors
        for layer, seconds in other.first_byte_seconds.items():
            self.first_byte_seconds[layer] += seconds
        for name, _ in _COUNTS.values():
            counts = Counter(getattr(self.totals, name)) + Counter(getattr(other.totals, name))
            setattr(self.totals, name, dict(counts))
        for name in _WORKING.values():
            if getattr(other.totals, name) is False:
                setattr(self.totals, name, False)
        self.totals.lost_records += other.totals.lost_records
        self.totals.proxies += other.totals.proxies


@dataclass(frozen=True, slots=True)
class TrafficStatistics:
    """Rates between two snapshots, and the totals of the later one.

    Attributes:
        per_second, first_byte_ms, requests: by layer, the rate (None if both are one snapshot), the mean time (None without a
            request), and the total.
        from_cache: share of the answered requests, 0 to 1; None without one.
        error_rate: share of the requests that failed, 0 to 1; None without one.
        errors: total number of failed requests, by status.
    """

    per_second: Mapping[str, float | None]
    first_byte_ms: Mapping[str, float | None]
    from_cache: float | None
    error_rate: float | None
    requests: Mapping[str, int]
    errors: Mapping[str, int]
    totals: Totals

    def document(self) -> dict[str, Any]:
        """Return the statistics as one JSON object, with the totals beside the rates."""
        values = fields_of(self)
        del values["totals"]
        return values | fields_of(self.totals)


def is_error(layer: str, status: str) -> bool:
    """Whether the proxy or the upstream failed a request; the alert `KvproxyErrors` has the same condition.

    A status of 500 or above of the upstream is in the layer `forward`. A `refused` request with 504 demanded a stored response,
    and the client set the deadline of a `disconnected` request with 504.
    """
    if layer == "refused":
        return status == "503"
    return layer == "error" or (layer != "disconnected" and status.startswith("5"))


def take_snapshot(client: ProxyClient, *others: ProxyClient) -> Snapshot:
    """Return the statistics of a proxy, with the requests of other proxies on its store."""
    from prometheus_client.parser import text_string_to_metric_families

    page = client.get_text("/metrics")
    snapshot = Snapshot(time.monotonic())
    totals = snapshot.totals
    for sample in (sample for family in text_string_to_metric_families(page) for sample in family.samples):
        name, labels, value = sample.name, sample.labels, sample.value
        if name == "kvproxy_requests_total":
            snapshot.requests[labels["layer"]] += int(value)
            if value and is_error(labels["layer"], labels["status"]):
                snapshot.errors[labels["status"]] += int(value)
        elif name == "kvproxy_first_byte_seconds_sum":
            snapshot.first_byte_seconds[labels["layer"]] += value
        elif name == "kvproxy_cache_entries":
            totals.entries = int(value)
        elif name in _WORKING:
            setattr(totals, _WORKING[name], value == 1)
        elif name == "kvproxy_journal_lost_records_total":
            totals.lost_records = int(value)
        elif name in _COUNTS:
            total, label = _COUNTS[name]
            if value:
                getattr(totals, total)[labels[label]] = int(value)
        elif name.startswith(_LEARNED):
            totals.learned[name.removeprefix(_LEARNED)] = value
        elif name.startswith(_SAVINGS):
            totals.saved.setdefault(labels["layer"], {})[name.removeprefix(_SAVINGS)] = value
    totals.blocks = perform_optional(client, block_statistics, NoParameters())
    totals.tiers = perform_optional(client, list_tiers, NoParameters()) or []
    for other in others:
        snapshot.add_proxy(take_snapshot(other))
    return snapshot


def take_upstreams(*clients: ProxyClient) -> list[EngineStatus]:
    """Return the upstreams of proxies; an upstream of several proxies has the sums of its requests."""
    upstreams: dict[str, EngineStatus] = {}
    for client in clients:
        for status in perform_optional(client, list_upstreams, NoParameters()) or []:
            known = upstreams.get(status.url)
            upstreams[status.url] = status if known is None else _add_requests(known, status)
    return list(upstreams.values())


def _add_requests(upstream: EngineStatus, other: EngineStatus) -> EngineStatus:
    states = dict.fromkeys([*upstream.state.split(", "), other.state])
    return replace(
        upstream,
        state=", ".join(states),
        requests=upstream.requests + other.requests,
        sent=upstream.sent + other.sent,
        errors=upstream.errors + other.errors,
        error=upstream.error or other.error,
    )


def perform_optional(
    client: ProxyClient, operation: DeclaredOperation[Parameters, Result], parameters: Parameters
) -> Result | None:
    """Perform an operation; return None if the proxy lacks the route or the prefix cache."""
    try:
        return client.perform(operation, parameters)
    except (NoPrefixCache, NotFound):
        return None


def rates_between(before: Snapshot, now: Snapshot) -> TrafficStatistics:
    """Return rates and mean times between two snapshots, or since a restart, and the totals of the later snapshot."""
    if any(now.requests[layer] < before.requests[layer] for layer in LAYERS):
        before = Snapshot(before.at)
    new = {layer: now.requests[layer] - before.requests[layer] for layer in LAYERS}
    seconds = {layer: now.first_byte_seconds[layer] - before.first_byte_seconds[layer] for layer in LAYERS}
    elapsed = now.at - before.at
    answered = sum(new.values()) - new["disconnected"]
    failed = now.errors.total() - before.errors.total()
    return TrafficStatistics(
        {layer: round(new[layer] / elapsed, 2) if elapsed else None for layer in LAYERS},
        {layer: round(1000 * seconds[layer] / new[layer], 2) if new[layer] else None for layer in LAYERS},
        round(sum(new[layer] for layer in CACHES) / answered, 4) if answered else None,
        round(failed / sum(new.values()), 4) if sum(new.values()) else None,
        {layer: now.requests[layer] for layer in LAYERS},
        dict(sorted(now.errors.items())),
        now.totals,
    )
