"""The figures of `kvproxy top`: one snapshot of a proxy, and the rates between two snapshots."""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kvproxy.commands.client import ProxyClient
from kvproxy.errors import NoPrefixCache, NotFound

LAYERS = ("exact", "semantic", "forward", "bypass", "refused", "gone", "error")
"""The layers of `flow.outcome.Layer`, in the order in which a page shows them."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The counters of a proxy at one moment.

    Attributes:
        at: seconds of a monotonic clock.
        requests: requests since the start, by layer.
        seconds: sum of the seconds to the first byte, by layer.
        entries: stored responses.
        blocks: figures of the prefix cache; None if the upstream manages its own.
        tiers: storage outside the block pool.
        learned: figures of the policy `learned`, by name; empty under another policy.
        lookups: semantic lookups, by outcome.
        compared: fresh responses compared with cached ones, by result.
        limited: requests that met a limit, by the limit's name.
        saved: savings from the journal, by layer and name.
    """

    at: float
    requests: Counter[str]
    seconds: Counter[str]
    entries: int
    blocks: dict[str, Any] | None
    tiers: list[dict[str, Any]]
    learned: dict[str, float] = field(default_factory=dict)
    lookups: dict[str, int] = field(default_factory=dict)
    compared: dict[str, int] = field(default_factory=dict)
    limited: dict[str, int] = field(default_factory=dict)
    saved: dict[str, dict[str, float]] = field(default_factory=dict)


def take_snapshot(client: ProxyClient) -> Snapshot:
    """Read `/metrics` and the figures of the prefix cache."""
    from prometheus_client.parser import text_string_to_metric_families

    found = Snapshot(time.monotonic(), Counter(), Counter(), 0, None, [])
    entries = 0
    for family in text_string_to_metric_families(client.text("/metrics")):
        for sample in family.samples:
            labels, value = sample.labels, sample.value
            match sample.name:
                case "kvproxy_requests_total":
                    found.requests[labels["layer"]] += int(value)
                case "kvproxy_first_byte_seconds_sum":
                    found.seconds[labels["layer"]] += value  # type: ignore[assignment]
                case "kvproxy_cache_entries":
                    entries = int(value)
                case "kvproxy_learned":
                    found.learned[labels["of"]] = value
                case "kvproxy_semantic_lookups":
                    found.lookups[labels["outcome"]] = int(value)
                case "kvproxy_compared_answers":
                    found.compared[labels["result"]] = int(value)
                case "kvproxy_limited_total":
                    found.limited[labels["limit"]] = int(value)
                case "kvproxy_saved":
                    found.saved.setdefault(labels["layer"], {})[labels["of"]] = value
    return Snapshot(
        time.monotonic(),
        found.requests,
        found.seconds,
        entries,
        optional(client, "/admin/blocks/stats"),
        optional(client, "/admin/blocks/tiers") or [],
        found.learned,
        found.lookups,
        found.compared,
        found.limited,
        found.saved,
    )


def optional(client: ProxyClient, path: str, **query: Any) -> Any:
    """The JSON of an admin route; None if this proxy has no such thing."""
    try:
        return client.get(path, **query)
    except (NoPrefixCache, NotFound):
        return None


def rates(before: Snapshot, now: Snapshot) -> dict[str, Any]:
    """Rates and mean times between two snapshots, totals, and the current state of the prefix cache.

    `first_byte_ms` is None for a layer without requests in between. Counters that fell mean a restart of the proxy; they
    are then counted from zero.
    """
    elapsed = now.at - before.at
    restarted = any(now.requests[layer] < before.requests[layer] for layer in LAYERS)
    requests, seconds = (Counter[str](), Counter[str]()) if restarted else (before.requests, before.seconds)
    new = {layer: now.requests[layer] - requests[layer] for layer in LAYERS}
    taken = {layer: now.seconds[layer] - seconds[layer] for layer in LAYERS}
    answered = sum(new.values()) - new["gone"]
    return {
        "per_second": {layer: round(new[layer] / elapsed, 2) for layer in LAYERS},
        "first_byte_ms": {
            layer: round(1000 * taken[layer] / new[layer], 2) if new[layer] else None for layer in LAYERS
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
