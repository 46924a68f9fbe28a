"""What a proxy says at one moment, and what happened between two of them."""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kvproxy.commands.client import ProxyClient
from kvproxy.errors import NoPrefixCache

LAYERS = ("exact", "semantic", "forward", "bypass", "gone", "error")
"""What becomes of requests, as `flow.outcome.Layer`: answered by a cache or by the engine, passed on unread, left by their
client, or refused."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What a proxy says at one moment.

    Attributes:
        at: when, in seconds of a clock that only rises.
        requests: answered so far, by layer.
        seconds: to the first byte in all, by layer.
        entries: stored responses.
        blocks: figures of the prefix cache; None where an upstream keeps its own.
        tiers: what is kept outside the pool.
        learned: what the policy learned knows, by name; empty under another policy.
        lookups: lookups of similar questions, by what came of them.
        compared: fresh answers that were compared with cached ones, by result.
        limited: what met a limit, by the limit's name.
        saved: what the journal says was saved, by layer and name.
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


def take(client: ProxyClient) -> Sample:
    """A look at `/metrics` and at the figures of the prefix cache, where there is one."""
    from prometheus_client.parser import text_string_to_metric_families

    found = Sample(time.monotonic(), Counter(), Counter(), 0, None, [])
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
    blocks, tiers = _ask(client, "/admin/blocks/stats"), _ask(client, "/admin/blocks/tiers")
    return Sample(
        time.monotonic(),
        found.requests,
        found.seconds,
        entries,
        blocks,
        tiers or [],
        found.learned,
        found.lookups,
        found.compared,
        found.limited,
        found.saved,
    )


def _ask(client: ProxyClient, path: str) -> Any:
    """What a route says of the prefix cache; None where an upstream keeps its own."""
    try:
        return client.get(path)
    except NoPrefixCache:
        return None


def restarted(before: Sample, now: Sample) -> bool:
    """Whether the proxy began to count anew between two looks."""
    return any(now.requests[layer] < before.requests[layer] for layer in LAYERS)


def between(before: Sample, now: Sample) -> dict[str, Any]:
    """Rates and mean times of what happened between two looks, totals, and the prefix cache as it is.

    `first_byte_ms` is None for a layer that answered nothing meanwhile.
    """
    elapsed = now.at - before.at
    # A proxy that was started again counts from nothing.
    requests, seconds = (
        (Counter[str](), Counter[str]()) if restarted(before, now) else (before.requests, before.seconds)
    )
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


def over_time(figures: dict[str, Any]) -> dict[str, float]:
    """What the history keeps of what happened between two looks."""
    blocks = figures["blocks"] or {}
    return (
        {f"{layer} a second": figures["per_second"][layer] for layer in LAYERS}
        | {"from cache share": figures["from_cache"] or 0.0}
        | {f"{layer} first byte ms": figures["first_byte_ms"][layer] or 0.0 for layer in ("exact", "forward")}
        | {"stored": float(figures["entries"])}
        | ({"pool share": blocks["usage"]} if blocks.get("usage") is not None else {})
        | ({"evictions": float(blocks["evictions"])} if blocks.get("evictions") is not None else {})
    )
