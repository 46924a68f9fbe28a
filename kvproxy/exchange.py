"""One request from its arrival to its end.

The HTTP layer creates an `Exchange`, the flow fills it in, and `flow/finish.py` reports it once. `Cache-Status`, metrics,
journal, and spans derive from it alone.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from time import perf_counter, time
from typing import Literal

from kvproxy.apis.api_request import PUBLIC_TENANT, ApiRequest
from kvproxy.apis.json import JsonObject
from kvproxy.apis.reported_usage import PrefixUse
from kvproxy.index.entry import Entry
from kvproxy.index.search.lookup_result import Lookup
from kvproxy.quotas import Account
from kvproxy.settings.clients import ClientSettings
from kvproxy.trace_context import Trace

Layer = Literal["exact", "semantic", "forward", "bypass", "refused", "disconnected", "error", "revalidated"]
"""Source of the response: a cache or the backend (`forward`).

`bypass`: forwarded without parsing. `refused`: the client's error. `disconnected`: the client left first. `error`: an error of
the proxy or the backend. `revalidated`: in the background.
"""
Stale = Literal["stale-while-revalidate", "stale-if-error"]
"""Reason to serve an expired response (RFC 5861)."""
ForwardReason = Literal["uri-miss", "request", "stale", "bypass"]
"""Reason to call the backend (RFC 9211): no stored response, one that the request refuses, a stale one, or an uncacheable
request."""


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Keys of a request.

    Attributes:
        exact: digest of everything that can change the response.
        namespace: digest of the same without the text of the last user turn.
        text: text of the last user turn; None if the response to a similar question must not be served.
        prompt: text of the request in listings.
        parts: the values that `exact` is a digest of.
    """

    exact: str
    namespace: str
    text: str | None
    prompt: str
    parts: JsonObject


@dataclass(frozen=True, slots=True)
class Match:
    """How well a stored question matches: cosine similarity, the verifier's score, and the estimated error."""

    similarity: float
    score: float | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class CacheHit:
    """The stored response that was served.

    Attributes:
        age: seconds since storage.
        ttl: seconds until expiry; negative after expiry.
        stale: the reason to serve it although it has expired.
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
        headers: lower-case names, possibly repeated.
        close: called once, after the last chunk or when the client disconnects.
    """

    status: int
    headers: list[tuple[str, str]]
    body: bytes | AsyncIterator[bytes]
    close: Callable[[], None] = field(default=lambda: None)


@dataclass(slots=True, eq=False)
class Exchange:
    """A request, its response, and what happened in between.

    Times of steps are values of `time.perf_counter`; 0.0 for a step that did not happen.

    Attributes:
        api: name of the cached API; None for other routes.
        tenant: see `flow/cache_keys.py`.
        arrived: seconds since the epoch.
        method, path: without the query; empty for the proxy's own routes and background requests.
        account: charges the client; None without quotas.
        trace: None until telemetry begins one.
        cacheable: an equal request may get the same response.
        bypass_reason: code of the reason to skip lookups; see `journal/reasons.py`.
        stale_entry: expired response, served if no other is available.
        is_entry_refused: the request's `no-cache` or `max-age` refuses a fresh stored response.
        lookup_failed: a store or an embedder failed.
        requested_ttl: lifetime of the response to be stored, if the request sets one.
        was_collapsed: shared with an identical request in flight.
        stored: the response is committed; known only with `Cache-Control: confirm`.
        prefix: reuse reported by the backend.
        predicted_tokens: reuse predicted by the upstream's mirror.
        is_engine: the backend is an engine of the operator, not a provider.
        block_size: tokens of its blocks; 0 if it is unknown.
        answer_digests: kinds and digests of the parts of the response's only message; see `apis/message_parts.py`.
        backend_seconds: seconds until the backend's response is complete.
        failure: code of the final error; see `journal/reasons.py`.
        started, exact_done, semantic_done: arrival, and end of each lookup.
        backend_started, first_byte, ended: start of the backend's response; start and end of the proxy's response.
    """

    api: str | None
    request_id: str
    tenant: str = PUBLIC_TENANT
    arrived: float = field(default_factory=time)
    method: str = ""
    path: str = ""
    client: ClientSettings | None = None
    account: Account | None = None
    traceparent: str | None = None
    trace: Trace | None = None
    request: ApiRequest | None = None
    key: CacheKey | None = None
    cacheable: bool = False
    bypass_reason: str | None = None
    stale_entry: Entry | None = None
    is_entry_refused: bool = False
    lookup: Lookup | None = None
    lookup_failed: bool = False
    hit: CacheHit | None = None
    forward_reason: ForwardReason | None = None
    requested_ttl: float | None = None
    was_collapsed: bool = False
    stored: bool = False
    entry_id: str | None = None
    upstream: str | None = None
    prefix: PrefixUse | None = None
    predicted_tokens: int | None = None
    is_engine: bool = True
    block_size: int = 0
    answer_digests: tuple[tuple[str, bytes], ...] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prefill_seconds: float | None = None
    backend_seconds: float | None = None
    layer: Layer = "refused"
    status: int = 0
    failure: str | None = None
    client_disconnected: bool = False
    started: float = field(default_factory=perf_counter)
    exact_done: float = 0.0
    semantic_done: float = 0.0
    backend_started: float = 0.0
    first_byte: float = 0.0
    ended: float = 0.0

    @property
    def api_request(self) -> ApiRequest:
        """Return the parsed request, which is set before the flow."""
        assert self.request is not None
        return self.request

    @property
    def cache_key(self) -> CacheKey:
        """Return the keys of the request; an error before the flow has computed them."""
        assert self.key is not None
        return self.key
