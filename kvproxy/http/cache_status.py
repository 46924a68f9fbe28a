"""The `Cache-Status` header (RFC 9211)."""

import math

from kvproxy.apis.reported_usage import PrefixReuse
from kvproxy.exchange import ArrayInputs, CacheHit, Exchange
from kvproxy.index.search.lookup_result import Candidate

CACHE = "kvproxy"
BYPASS = ("cache-status", f"{CACHE}; fwd=bypass")
"""The header for requests that were forwarded without parsing."""
_MAX_INTEGER = 10**15 - 1  # Of a structured field (RFC 8941, section 3.3.1).


def cache_headers(exchange: Exchange) -> list[tuple[str, str]]:
    hit = exchange.hit
    if exchange.layer == "plugin":
        # RFC 9211: only responses from a cache and forwarded ones have the header.
        return []
    if hit is not None:
        return [("cache-status", _format_hit(hit, exchange.inputs)), ("age", str(max(0, _integer(hit.age))))]
    return [("cache-status", _format_forward(exchange))]


def _format_hit(hit: CacheHit, inputs: ArrayInputs | None) -> str:
    detail = "exact" if hit.match is None else _format_scores(hit.match)
    if inputs is not None:
        detail += f" {_format_inputs(inputs)}"
    if hit.stale is not None:
        detail += f" {hit.stale}"
    ttl = _integer(math.floor(hit.ttl) if hit.stale else hit.ttl)
    key = f'; key="{hit.id}"' if hit.id else ""
    return f'{CACHE}; hit; ttl={ttl}; detail="{detail}"{key}'


def _format_inputs(inputs: ArrayInputs) -> str:
    return f"inputs {inputs.cached}/{inputs.count}"


def _format_forwarded_inputs(inputs: ArrayInputs) -> str:
    return _format_inputs(inputs) + (" stale-while-revalidate" if inputs.stale else "")


def _integer(value: float) -> int:
    return int(max(-_MAX_INTEGER, min(value, _MAX_INTEGER)))


def _format_scores(match: Candidate) -> str:
    parts = [f"semantic similarity={match.similarity:.3f}"]
    if match.score not in (None, match.similarity):
        parts.append(f"verifier={match.score:.3f}")
    if match.error is not None:
        parts.append(f"error={match.error:.4f}")
    return " ".join(parts)


def _format_forward(exchange: Exchange) -> str:
    facts = exchange.facts
    parts = [CACHE, f"fwd={exchange.forward_reason}"]
    if exchange.status != 200:
        parts.append(f"fwd-status={exchange.status}")
    if exchange.stored:
        parts.append("stored")
    if exchange.was_collapsed:
        parts.append("collapsed")
    if exchange.requested_ttl is not None and exchange.status == 200:
        parts.append(f"ttl={_integer(exchange.requested_ttl)}")
    # A stream's upstream reports the reuse in an event, which may arrive before or after the headers are sent.
    is_late = facts.served_by is not None and exchange.request is not None and exchange.request.stream
    details = [_format_prefix(facts.prefix)] if facts.prefix is not None and not is_late else []
    details += [_format_forwarded_inputs(exchange.inputs)] if exchange.inputs is not None else []
    details += ["skipped"] if exchange.lookup is not None and exchange.lookup.skip_reason is not None else []
    details += [f"not stored: {facts.not_stored}"] if facts.not_stored is not None and exchange.status == 200 else []
    if details:
        parts.append(f'detail="{" ".join(details)}"')
    # The headers of a stream are sent before it is stored.
    key = facts.entry_id or (facts.planned_id if facts.not_stored is None else None)
    if key is not None:
        parts.append(f'key="{key}"')
    return "; ".join(parts)


def _format_prefix(prefix: PrefixReuse) -> str:
    tiers = f" tiers={prefix.tier_tokens}" if prefix.tier_tokens else ""
    return f"prefix {prefix.cached_tokens}/{prefix.prompt_tokens}{tiers}"
