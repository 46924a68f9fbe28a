"""One request from its arrival to its end.

The HTTP layer creates an `Exchange`, the flow fills it in, and `flow/finish.py` reports it once. `Cache-Status`, the metrics, the
journal's record, and the telemetry spans are functions of it. No other object collects facts about a request.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from time import perf_counter, time
from typing import Literal

from kvproxy.apis.json import JsonObject
from kvproxy.apis.request import PUBLIC, ApiRequest
from kvproxy.index.entry import Entry
from kvproxy.index.search.lookup import Lookup
from kvproxy.quotas import Account
from kvproxy.settings.clients import ClientSettings
from kvproxy.trace import Trace

Layer = Literal["exact", "semantic", "forward", "bypass", "refused", "disconnected", "error", "revalidated"]
"""Source of the response: a cache or the backend (`forward`).

`bypass`: forwarded without parsing. `refused`: an error of the client. `disconnected`: the client disconnected first. `error`: an
error of the proxy or the backend. `revalidated`: a revalidation in the background.
"""
Stale = Literal["stale-while-revalidate", "stale-if-error"]
"""Reason to serve an expired response (RFC 5861)."""
ForwardReason = Literal["uri-miss", "request", "bypass"]
"""Reason to forward a request (RFC 9211): no stored response, a request for a fresh one, or an uncacheable request."""


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Keys of a request.

    Attributes:
        exact: digest of everything that can change the response.
        namespace: digest of the same without the text of the last user turn.
        text: that text if a similar question may get the same response, else None.
        prompt: text of the request in listings.
        parts: the content of the exact digest.
    """

    exact: str
    namespace: str
    text: str | None
    prompt: str
    parts: JsonObject


@dataclass(frozen=True, slots=True)
class PrefixUse:
    """Tokens of a prompt; reused ones; of these, tokens from a tier beyond the GPU pool."""

    prompt_tokens: int
    cached_tokens: int
    tier_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    """A semantic match: cosine similarity, the verifier's score, and the bound on the error."""

    similarity: float
    score: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class CacheHit:
    """The stored response that was served.

    Attributes:
        id, key: of the stored response.
        age: seconds since it was stored.
        ttl: seconds until it expires; negative after that.
        stale: reason to serve it although it is expired.
        match: of a semantic hit.
    """

    id: str
    key: str
    age: float
    ttl: float
    prompt_tokens: int
    completion_tokens: int
    stale: Stale | None = None
    match: Match | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to the client.

    Attributes:
        headers: lower-case names; a name may repeat.
        body: complete, or its chunks.
        close: the caller calls it once after the last chunk, or when the client disconnects.
    """

    status: int
    headers: list[tuple[str, str]]
    body: bytes | AsyncIterator[bytes]
    close: Callable[[], None] = field(default=lambda: None)


@dataclass(slots=True, eq=False)
class Exchange:
    """A request, its response, and what happened in between.

    Times of steps are values of `time.perf_counter`, or 0.0 if the step did not happen.

    Attributes:
        api: name of the cached API; None for every other route.
        request_id: shown to the client, too.
        tenant: see `flow/keys.py`.
        arrived: seconds since the epoch.
        client: the client with a key of this proxy.
        account: charges the client for the request; None without quotas.
        traceparent: the client's header.
        trace: None until telemetry begins one.
        request: None until the body is parsed.
        key: None until it is computed.
        cacheable: whether an equal request may get the same response.
        bypass_reason: reason token to skip the lookups.
        stale_entry: expired response to an equal request. It is served if no other response is available.
        too_old: a stored response is older than the request's `max-age`.
        lookup: result of the last semantic lookup.
        lookup_failed: a store or an embedder failed.
        hit: the stored response that was served.
        forward_reason: reason to call the backend.
        collapsed: the response was shared with an identical request in flight.
        stored: the response is committed. Only `Cache-Control: confirm` waits for this.
        entry_id: id of the entry that stores the response.
        upstream: URL of the upstream that responded.
        prefix: reuse of the prompt as reported by the backend.
        predicted_tokens: reuse that the upstream's mirror predicted.
        prompt_tokens, completion_tokens: of a response by the backend.
        prefill_seconds: duration of the prefill, reported or measured.
        backend_seconds: duration of the backend's complete response.
        status: HTTP status.
        failure: reason token of the error that ended the exchange.
        client_left: the client disconnected during the response.
        started, exact_done, semantic_done: the request arrived; each lookup ended.
        backend_started, first_byte, ended: the backend's and the proxy's responses began; the response ended.
    """

    api: str | None
    request_id: str
    tenant: str = PUBLIC
    arrived: float = field(default_factory=time)
    client: ClientSettings | None = None
    account: Account | None = None
    traceparent: str | None = None
    trace: Trace | None = None
    request: ApiRequest | None = None
    key: CacheKey | None = None
    cacheable: bool = False
    bypass_reason: str | None = None
    stale_entry: Entry | None = None
    too_old: bool = False
    lookup: Lookup | None = None
    lookup_failed: bool = False
    hit: CacheHit | None = None
    forward_reason: ForwardReason | None = None
    collapsed: bool = False
    stored: bool = False
    entry_id: str | None = None
    upstream: str | None = None
    prefix: PrefixUse | None = None
    predicted_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prefill_seconds: float | None = None
    backend_seconds: float | None = None
    layer: Layer = "refused"
    status: int = 0
    failure: str | None = None
    client_left: bool = False
    started: float = field(default_factory=perf_counter)
    exact_done: float = 0.0
    semantic_done: float = 0.0
    backend_started: float = 0.0
    first_byte: float = 0.0
    ended: float = 0.0

    @property
    def api_request(self) -> ApiRequest:
        """The parsed request. Only valid in the flow, which receives no exchange without one."""
        assert self.request is not None
        return self.request

    @property
    def cache_key(self) -> CacheKey:
        """The computed key. Only valid after the flow computed it."""
        assert self.key is not None
        return self.key
