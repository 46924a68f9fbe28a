"""Reads a proxy's statistics, and computes rates between two readings."""

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from kvproxy.errors import NoPrefixCache, NotFound
from kvproxy.operations.client import ProxyClient

LAYERS = ("exact", "semantic", "plugin", "forward", "bypass", "refused", "disconnected", "error")
_LEARNED, _SAVINGS = "kvproxy_learned_policy_", "kvproxy_savings_"
# By metric: its name in `Snapshot.totals`, and the label that groups its counts.
_COUNTS = {
    "kvproxy_semantic_lookups_total": ("lookups", "outcome"),
    "kvproxy_comparisons_total": ("compared", "result"),
    "kvproxy_limited_total": ("limited", "limit"),
}


@dataclass(slots=True)
class Snapshot:
    """Statistics of a proxy at one moment.

    Attributes:
        at: time in seconds of the monotonic clock.
        requests, first_byte_seconds: by layer, the number of requests and the sum of their times to the first byte.
        totals: other statistics by name; `blocks` is None without a prefix cache that the proxy can inspect.
    """

    at: float
    requests: Counter[str] = field(default_factory=Counter)
    first_byte_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    totals: dict[str, Any] = field(default_factory=dict)


def take_snapshot(client: ProxyClient) -> Snapshot:
    from prometheus_client.parser import text_string_to_metric_families

    page = client.get_text("/metrics")
    empty = {"entries": 0, "learned": {}, "lookups": {}, "compared": {}, "limited": {}, "saved": {}}
    found = Snapshot(time.monotonic(), totals=empty)
    for sample in (sample for family in text_string_to_metric_families(page) for sample in family.samples):
        name, labels, value = sample.name, sample.labels, sample.value
        if name == "kvproxy_requests_total":
            found.requests[labels["layer"]] += int(value)
        elif name == "kvproxy_first_byte_seconds_sum":
            found.first_byte_seconds[labels["layer"]] += value
        elif name == "kvproxy_cache_entries":
            found.totals["entries"] = int(value)
        elif name in _COUNTS:
            total, label = _COUNTS[name]
            found.totals[total][labels[label]] = int(value)
        elif name.startswith(_LEARNED):
            found.totals["learned"][name.removeprefix(_LEARNED)] = value
        elif name.startswith(_SAVINGS):
            found.totals["saved"].setdefault(labels["layer"], {})[name.removeprefix(_SAVINGS)] = value
    found.totals["blocks"] = get_optional(client, "/admin/blocks/stats")
    found.totals["tiers"] = get_optional(client, "/admin/blocks/tiers") or []
    return found


def get_optional(client: ProxyClient, path: str, **query: Any) -> Any:
    """Send a GET request; return None if the proxy lacks the route or the prefix cache."""
    try:
        return client.get(path, **query)
    except (NoPrefixCache, NotFound):
        return None


def rates_between(before: Snapshot, now: Snapshot) -> dict[str, Any]:
    """Return rates and mean times between two snapshots, or since a restart, and the totals of the later snapshot."""
    if any(now.requests[layer] < before.requests[layer] for layer in LAYERS):
        before = Snapshot(before.at)
    new = {layer: now.requests[layer] - before.requests[layer] for layer in LAYERS}
    seconds = {layer: now.first_byte_seconds[layer] - before.first_byte_seconds[layer] for layer in LAYERS}
    answered = sum(new.values()) - new["disconnected"]
    return {
        "per_second": {layer: round(new[layer] / (now.at - before.at), 2) for layer in LAYERS},
        "first_byte_ms": {
            layer: round(1000 * seconds[layer] / new[layer], 2) if new[layer] else None for layer in LAYERS
        },
        "from_cache": round((new["exact"] + new["semantic"]) / answered, 4) if answered else None,
        "requests": {layer: now.requests[layer] for layer in LAYERS},
        **now.totals,
    }
