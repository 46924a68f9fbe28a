"""Makes the record of an exchange, with the reason that the exchange gives."""

from typing import TYPE_CHECKING

from kvproxy.apis.api import TokenCounts
from kvproxy.apis.json import as_token_count
from kvproxy.apis.service_tiers import requested_tier
from kvproxy.errors import UpstreamTimeout
from kvproxy.exchange import Exchange, ResponseFacts
from kvproxy.index.policies.guards.hidden_text import has_hidden_text
from kvproxy.index.policies.policy import verdict_token
from kvproxy.journal.reasons import INVALID_STATUSES, is_known_reason, layer_of_failure, reason_of_status
from kvproxy.journal.record import FALLBACK_TAG, MAX_REQUEST_ID, Layer, Record, client_name
from kvproxy.journal.token_estimates import estimate_prompt_tokens

if TYPE_CHECKING:
    from kvproxy.index.search.lookup_result import Candidate, Lookup


def record_of(exchange: Exchange) -> Record:
    """Return the record of an exchange, without its number and the fields that depend on earlier requests."""
    request, hit, near = exchange.request, exchange.hit, decisive_neighbour(exchange.lookup)
    reason = reason_of(exchange)
    # A stale hit may follow a failed response.
    facts = exchange.facts if hit is None else ResponseFacts()
    upstream, prefix, prefill_seconds = facts.served_by, facts.prefix, facts.prefill_seconds
    if prefill_seconds is None and not exchange.was_collapsed:
        prefill_seconds = facts.first_chunk_seconds
    tags = request.control.tags if request is not None else ()
    if upstream is not None and upstream.has_generated_tokens:
        tags = (*tags, "repaired:tokens")
    if request is not None and upstream is not None and upstream.fallback:
        tags = (*tags, f"{FALLBACK_TAG}{request.model}")
    start, layer, inputs = exchange.started, layer_of(exchange, reason), exchange.inputs
    estimated_prompt, estimated_completion = _estimated_usage(exchange)
    is_unserved = hit is not None or (exchange.status != 200 and estimated_prompt is not None)
    return Record(
        number=0,
        time=exchange.arrived,
        request_id=exchange.request_id[:MAX_REQUEST_ID],
        tenant=exchange.tenant,
        client=client_name(exchange.tenant),
        api=exchange.api or "",
        model=model_of(exchange),
        upstream=(_unread_upstream(exchange) if upstream is None else upstream.url) or None,
        status=exchange.status,
        layer=layer,
        reason=reason,
        changed=None,
        removed_at=None,
        entry=facts.entry_id if hit is None else hit.id or None,
        near=None if near is None else near.id,
        similarity=None if near is None else near.similarity,
        score=None if near is None else near.score,
        error=None if near is None else near.error,
        guard=None if near is None else near.guard,
        # Entries of an import have any numbers.
        prompt_tokens=as_token_count(facts.prompt_tokens if hit is None else hit.prompt_tokens),
        predicted_tokens=None if upstream is None else upstream.predicted_tokens,
        # The backend reused the prefix of a shared response once, for the request that it computed.
        reused_tokens=None if prefix is None or layer == "shared" else prefix.cached_tokens,
        completion_tokens=as_token_count(facts.completion_tokens if hit is None else hit.completion_tokens),
        exact_ms=_milliseconds(start, exchange.exact_done),
        semantic_ms=_milliseconds(exchange.exact_done, exchange.semantic_done),
        backend_ms=_milliseconds(exchange.semantic_done or exchange.exact_done or start, exchange.backend_started),
        prefill_ms=None if prefill_seconds is None else prefill_seconds * 1000,
        first_ms=_milliseconds(start, exchange.first_byte or exchange.ended),
        total_ms=total_milliseconds(exchange),
        tags=",".join(tags),
        key=None if exchange.key is None else exchange.key.exact,
        prompt=None,
        against=None,
        text=None,
        not_stored=None if facts.not_stored is None else str(facts.not_stored),
        estimated_prompt_tokens=estimated_prompt,
        estimated_completion_tokens=estimated_completion,
        upstream_request_id=_short_id(exchange.upstream_request_id),
        response_id=_short_id(facts.response_id),
        service_tier=_requested_tier(exchange) if is_unserved else facts.service_tier,
        modalities=facts.modalities if hit is None else hit.modalities,
        team=exchange.team,
        reached_limit=exchange.reached_limit,
        inputs=None if inputs is None else inputs.count,
        inputs_cached=None if inputs is None else inputs.cached,
        inputs_cached_tokens=None if inputs is None else inputs.cached_tokens,
    )


def _short_id(id: str | None) -> str | None:
    return id[:MAX_REQUEST_ID] if id else None


KEEP_WARM_TAG = "keep-warm"
"""Tag of the requests with which the proxy keeps a prefix in a provider's cache."""
_ABORTED = ("disconnected", "error-timeout", "error-stopped")
"""Beginnings of the reasons of requests that the client or the proxy aborted."""


def _requested_tier(exchange: Exchange) -> str | None:
    return None if exchange.request is None else requested_tier(exchange.request.body)


def _estimated_usage(exchange: Exchange) -> TokenCounts:
    """Return the estimated tokens of prompt and response that the backend did not report, such as of an aborted stream."""
    facts = exchange.facts
    if exchange.hit is not None or exchange.was_collapsed:
        return None, None
    if (facts.upstream_status or exchange.status) != 200:
        return _estimated_usage_of_aborted(exchange)
    if not facts.started or exchange.request is None:
        return facts.estimated_usage
    prompt = estimate_prompt_tokens(exchange.request.body) if facts.prompt_tokens is None else None
    # A response in the background is generated after this exchange.
    has_no_estimate = facts.completion_tokens is not None or exchange.request.body.get("background") is True
    return prompt, None if has_no_estimate else facts.received_tokens


def _estimated_usage_of_aborted(exchange: Exchange) -> TokenCounts:
    """Return the estimated tokens of a request that was aborted after it was sent, and before its response began."""
    if exchange.request is None:
        return exchange.facts.estimated_usage
    if not _was_aborted(exchange) or not exchange.was_sent:
        return None, None
    return estimate_prompt_tokens(exchange.request.body), 0


def _was_aborted(exchange: Exchange) -> bool:
    # An upstream that was unreachable, or too slow, has one reason.
    is_too_slow = exchange.failure == UpstreamTimeout.reason and exchange.status == UpstreamTimeout.status
    return is_too_slow or (exchange.failure or "").startswith(_ABORTED)


def reason_of(exchange: Exchange) -> str:
    """Return the reason token of an exchange; `miss-new` for a miss whose cause depends on earlier requests."""
    if exchange.failure is not None:
        return exchange.failure
    if exchange.client_disconnected:
        return "disconnected-reading"
    if exchange.hit is not None:
        return exchange.hit.stale or f"hit-{exchange.layer}"
    if exchange.layer == "plugin":
        return f"plugin-{exchange.plugin}"
    if exchange.layer == "bypass":
        return "bypass-unread"
    if exchange.layer == "refused":
        return reason_of_status(exchange.status)
    if exchange.status >= 400:
        return "refused-upstream" if exchange.status in INVALID_STATUSES else "error-upstream"
    if exchange.layer == "revalidated":
        return "revalidated"
    if exchange.is_warming and exchange.request is not None and KEEP_WARM_TAG in exchange.request.control.tags:
        return "keep-warm"
    if exchange.is_shadow_pair:
        return "shadow"
    if exchange.was_collapsed:
        return "hit-shared"
    if exchange.bypass_reason is not None:
        return exchange.bypass_reason
    if exchange.lookup_failed:
        return "miss-failed"
    if exchange.is_entry_refused:
        return "miss-old"
    return "miss-inputs" if exchange.inputs_to_store else "miss-new"


def reason_of_unexplained_miss(exchange: Exchange, *, asked_before: bool, computed_before: bool) -> str:
    """Return the reason token of a miss that neither a removed response nor a changed request explains.

    Args:
        asked_before: an earlier equal request is in the journal.
        computed_before: the backend responded to an earlier equal request.
    """
    if exchange.is_concurrent:
        return "miss-concurrent"
    if exchange.lookup is not None and exchange.lookup.skip_reason is not None:
        return f"skipped-{exchange.lookup.skip_reason}"
    if exchange.lookup is not None and has_hidden_text(exchange.lookup.question or ""):
        return "miss-hidden"
    if computed_before:
        return "miss-unstored"
    token = reason_of_decisive_neighbour(exchange.lookup)
    if token is not None:
        return token
    if asked_before:
        return "miss-unstored"
    prefix = exchange.facts.prefix
    if prefix is not None and prefix.cached_tokens and prefix.prompt_tokens:
        return f"prefix-{100 * prefix.cached_tokens // prefix.prompt_tokens}%"
    return "miss-new"


def is_warmed_by_backend(exchange: Exchange) -> bool:
    """Whether a request warmed a cache with a response that the backend computed."""
    is_computed = exchange.layer == "forward" and not exchange.was_collapsed
    return exchange.is_warming and is_computed and exchange.status < 400


def layer_of(exchange: Exchange, reason: str) -> Layer:
    if exchange.layer == "revalidated":
        return "revalidated"
    if exchange.is_warming:
        return "warming"
    if exchange.failure is not None or exchange.client_disconnected or exchange.layer == "refused":
        return layer_of_failure(reason)
    if exchange.layer == "forward":
        if exchange.was_collapsed and exchange.status < 400:
            return "shared"
        if exchange.facts.prefix is not None and exchange.facts.prefix.cached_tokens:
            return "prefix"
    return exchange.layer


def _unread_upstream(exchange: Exchange) -> str | None:
    """Return the upstream that received a request without parsing; None for another request."""
    return None if exchange.unread_delivery is None else exchange.unread_delivery.upstream


def model_of(exchange: Exchange) -> str:
    """Return the model that answered: the fallback, or else the requested one; empty without a request."""
    upstream = exchange.facts.served_by if exchange.hit is None else None
    if upstream is not None and upstream.fallback:
        return upstream.fallback
    return exchange.request.model if exchange.request is not None else exchange.unread_model


def total_milliseconds(exchange: Exchange) -> float | None:
    return _milliseconds(exchange.started, exchange.ended or exchange.first_byte)


def _milliseconds(start: float, end: float) -> float | None:
    return (end - start) * 1000 if end else None


def decisive_neighbour(lookup: "Lookup | None") -> "Candidate | None":
    """Return the stored question that decided a semantic lookup; None if no question was compared."""
    return None if lookup is None else lookup.decisive_candidate("not compared", "expired")


def reason_of_decisive_neighbour(lookup: "Lookup | None") -> str | None:
    """Return the reason token for the question that decided a semantic lookup, see `reason_of_neighbour`."""
    near = decisive_neighbour(lookup)
    return None if near is None else reason_of_neighbour(near)


def reason_of_neighbour(neighbour: "Candidate") -> str | None:
    """Return the reason token for a similar question whose response was not served; None if no token exists."""
    # In shadow mode, the exchange has the reason already.
    token = "miss-old" if neighbour.verdict == "accepted" else verdict_token(neighbour.verdict, neighbour.guard)
    # A guard of a plugin is not in the table.
    return token if neighbour.verdict == "vetoed" or is_known_reason(token) else None
