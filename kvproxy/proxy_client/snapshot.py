"""Statistics of a running proxy at one moment, and the rates between two moments."""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kvproxy.errors import NoPrefixCache, NotFound
from kvproxy.proxy_client.client import ProxyClient

LAYERS = ("exact", "semantic", "forward", "bypass", "refused", "disconnected", "error")
"""Values of `exchange.Layer` in display order."""
_LEARNED, _SAVINGS = "kvproxy_learned_policy_", "kvproxy_savings_"


@dataclass(slots=True)
class Snapshot:
    """Counters of a proxy.

    Attributes:
        at: monotonic clock in seconds.
        requests: requests since the start, by layer.
        seconds: sum of the times to first byte, by layer.
        entries: stored responses.
        blocks: statistics of the prefix cache; None if the upstream manages it.
        tiers: statistics of tiers.
        learned: statistics of the policy `learned`; empty under another policy.
        lookups: semantic lookups by outcome.
        compared: fresh responses compared with cached ones, by result.
        limited: requests over a limit, by limit.
        saved: savings by layer and name.
    """

    at: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    entries: int = 0
    blocks: dict[str, Any] | None = None
    tiers: list[dict[str, Any]] = field(default_factory=list)
    learned: dict[str, float] = field(default_factory=dict)
    lookups: dict[str, int] = field(default_factory=dict)
    compared: dict[str, int] = field(default_factory=dict)
    limited: dict[str, int] = field(default_factory=dict)
    saved: dict[str, dict[str, float]] = field(default_factory=dict)


def take_snapshot(client: ProxyClient) -> Snapshot:
    """Read the metrics and the statistics of the prefix cache."""
    from prometheus_client.parser import text_string_to_metric_families

    found = Snapshot()
    for family in text_string_to_metric_families(client.text("/metrics")):
        for sample in family.samples:
            labels, value = sample.labels, sample.value
            match sample.name:
                case "kvproxy_requests_total":
                    found.requests[labels["layer"]] += int(value)
                case "kvproxy_first_byte_seconds_sum":
                    found.seconds[labels["layer"]] = found.seconds.get(labels["layer"], 0.0) + value
                case "kvproxy_cache_entries":
                    found.entries = int(value)
                case name if name.startswith(_LEARNED):
                    found.learned[name.removeprefix(_LEARNED)] = value
                case "kvproxy_semantic_lookups_total":
                    found.lookups[labels["outcome"]] = int(value)
                case "kvproxy_comparisons_total":
                    found.compared[labels["result"]] = int(value)
                case "kvproxy_limited_total":
                    found.limited[labels["limit"]] = int(value)
                case name if name.startswith(_SAVINGS):
                    found.saved.setdefault(labels["layer"], {})[name.removeprefix(_SAVINGS)] = value
    found.at = time.monotonic()
    found.blocks = get_optional(client, "/admin/blocks/stats")
    found.tiers = get_optional(client, "/admin/blocks/tiers") or []
    return found


def get_optional(client: ProxyClient, path: str, **query: Any) -> Any:
    """Return the JSON of an admin route; None if the proxy lacks the feature."""
    try:
        return client.get(path, **query)
    except (NoPrefixCache, NotFound):
        return None


def rates(before: Snapshot, now: Snapshot) -> dict[str, Any]:
    """Return rates and mean times between two snapshots, and the current totals.

    Counters that decreased indicate a restart of the proxy, and count from zero.
    """
    if any(now.requests[layer] < before.requests[layer] for layer in LAYERS):
        before = Snapshot(before.at)
    new = {layer: now.requests[layer] - before.requests[layer] for layer in LAYERS}
    seconds = {layer: now.seconds.get(layer, 0.0) - before.seconds.get(layer, 0.0) for layer in LAYERS}
    answered = sum(new.values()) - new["disconnected"]
    return {
        "per_second": {layer: round(new[layer] / (now.at - before.at), 2) for layer in LAYERS},
        "first_byte_ms": {
            layer: round(1000 * seconds[layer] / new[layer], 2) if new[layer] else None for layer in LAYERS
        },
        "from_cache": round((new["exact"] + new["semantic"]) / answered, 4) if answered else None,
        "requests": {layer: now.requests[layer] for layer in LAYERS},
        "entries": now.entries,
        "blocks": now.blocks,
        "tiers": now.tiers,
        "learned": now.learned,
        "lookups": now.lookups,
        "compared": now.compared,
        "limited": now.limited,
        "saved": now.saved,
    }
