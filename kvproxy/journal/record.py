"""Records of requests, and the reasons that exchanges give for them."""

from dataclasses import dataclass
from typing import Literal

from kvproxy.apis.json import as_token_count
from kvproxy.exchange import Exchange, ResponseFacts
from kvproxy.exchange import Layer as ExchangeLayer
from kvproxy.index.policies.guards.hidden_text import has_hidden_text
from kvproxy.journal.reasons import INVALID_STATUSES, decisive_neighbour, reason_of_decisive_neighbour, reason_of_status
from kvproxy.journal.request_regions import Regions
from kvproxy.settings.access import CLIENT_PREFIX

# Commands and charts list layers in this order.
Layer = Literal["exact", "semantic", "shared", "prefix", ExchangeLayer, "warming"]
"""Source of a response, as in `exchange.Layer`, or `shared`, `prefix`, or `warming`.

`shared`: an identical request in flight. `prefix`: a backend that reused a part of the prompt. `warming`: any source, for a
request that warms a cache.
"""
MAX_REQUEST_ID = 128
FALLBACK_TAG = "fallback:"
"""Beginning of the tag of requests for a model that another model answered. The record names the other model."""


@dataclass(slots=True)
class Record:
    """One request; docs/records.md describes the fields. None means unknown, or that the step did not happen."""

    number: int
    time: float
    request_id: str
    tenant: str
    client: str | None
    api: str
    model: str
    upstream: str | None
    status: int
    layer: Layer
    reason: str
    changed: str | None
    removed_at: float | None
    entry: str | None
    near: str | None
    similarity: float | None
    score: float | None
    error: float | None
    guard: str | None
    prompt_tokens: int | None
    predicted_tokens: int | None
    reused_tokens: int | None
    completion_tokens: int | None
    exact_ms: float | None
    semantic_ms: float | None
    backend_ms: float | None
    prefill_ms: float | None
    first_ms: float | None
    total_ms: float | None
    tags: str | None
    key: str | None
    prompt: int | None
    against: int | None
    text: str | None
    not_stored: str | None = None
    proxy: str | None = None


@dataclass(slots=True)
class RecordWithQuestions(Record):
    """A record with its question, and the stored question that was compared with it; None if unknown.

    `cost` is the provider's price of prompt and response: 0 for a hit, and None if a price or the usage is unknown.
    """

    question: str | None = None
    stored_question: str | None = None
    cost: float | None = None


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
    start = exchange.started
    return Record(
        number=0,
        time=exchange.arrived,
        request_id=exchange.request_id[:MAX_REQUEST_ID],
        tenant=exchange.tenant,
        client=client_name(exchange.tenant),
        api=exchange.api or "",
        model=model_of(exchange),
        upstream=(upstream and upstream.url) or None,
        status=exchange.status,
        layer=layer_of(exchange, reason),
        reason=reason,
        changed=None,
        removed_at=None,
        entry=facts.entry_id if hit is None else hit.id,
        near=None if near is None else near.id,
        similarity=None if near is None else near.similarity,
        score=None if near is None else near.score,
        error=None if near is None else near.error,
        guard=None if near is None else near.guard,
        # Entries of an import have any numbers.
        prompt_tokens=as_token_count(facts.prompt_tokens if hit is None else hit.prompt_tokens),
        predicted_tokens=None if upstream is None else upstream.predicted_tokens,
        reused_tokens=None if prefix is None else prefix.cached_tokens,
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
    )


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
    if exchange.is_shadow_pair:
        return "shadow"
    if exchange.was_collapsed:
        return "hit-shared"
    if exchange.bypass_reason is not None:
        return exchange.bypass_reason
    if exchange.lookup_failed:
        return "miss-failed"
    return "miss-old" if exchange.is_entry_refused else "miss-new"


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


def client_name(tenant: str) -> str | None:
    """Return the client's name in a tenant `client:NAME`; None if the tenant names no client."""
    return tenant[len(CLIENT_PREFIX) :].partition("/")[0] if tenant.startswith(CLIENT_PREFIX) else None


def layer_of(exchange: Exchange, reason: str) -> Layer:
    if exchange.layer == "revalidated":
        return "revalidated"
    if exchange.is_warming:
        return "warming"
    if exchange.failure is not None or exchange.client_disconnected or exchange.layer == "refused":
        failed: dict[str, Layer] = {"disconnected": "disconnected", "error": "error"}
        return failed.get(reason.partition("-")[0], "refused")
    if exchange.layer == "forward":
        if exchange.was_collapsed and exchange.status < 400:
            return "shared"
        if exchange.facts.prefix is not None and exchange.facts.prefix.cached_tokens:
            return "prefix"
    return exchange.layer


def model_of(exchange: Exchange) -> str:
    """Return the model that answered: the fallback, or else the requested one; empty without a request."""
    upstream = exchange.facts.served_by if exchange.hit is None else None
    if upstream is not None and upstream.fallback:
        return upstream.fallback
    return exchange.request.model if exchange.request is not None else ""


def total_milliseconds(exchange: Exchange) -> float | None:
    return _milliseconds(exchange.started, exchange.ended or exchange.first_byte)


def _milliseconds(start: float, end: float) -> float | None:
    return (end - start) * 1000 if end else None


@dataclass(frozen=True, slots=True)
class BackendPrompt:
    """A prompt that reached the backend.

    Attributes:
        time: arrival in seconds since the epoch.
        session: number of its session.
        reused_tokens: None if the backend did not report them.
    """

    time: float
    tenant: str
    session: int
    prompt_tokens: int
    completion_tokens: int
    reused_tokens: int | None
    regions: Regions
