"""One request: the HTTP layer creates an `Exchange`, the path fills it in, and the observers receive it once."""

from asyncio import Task
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from kvproxy.apis.api import TokenCounts
from kvproxy.apis.api_request import PUBLIC_TENANT, ApiRequest, Delivery, requests_sampling
from kvproxy.apis.embeddings import sum_tokens
from kvproxy.apis.json import JsonObject
from kvproxy.apis.not_stored import NotStored
from kvproxy.apis.reported_usage import PrefixReuse
from kvproxy.apis.trace_context import Trace
from kvproxy.index.entry import Entry, Stale
from kvproxy.layers import Layer

if TYPE_CHECKING:
    from kvproxy.backends.protocol import ServingUpstream
    from kvproxy.clients.quotas import Account
    from kvproxy.index.search.lookup_result import Candidate, Lookup
    from kvproxy.index.store import AnswerComputation
    from kvproxy.settings.access import ClientSettings

_MAX_SIZE_FACTOR = 16  # Of an array with as many inputs or more.
T = TypeVar("T")
ForwardReason = Literal["uri-miss", "request", "stale", "bypass", "partial"]
"""Reason to call the backend (RFC 9211).

`uri-miss`: no response is stored. `request`: the request's `Cache-Control` rejects the stored response. `stale`: the stored
response is stale. `bypass`: the request is not cacheable. `partial`: some inputs of an array are stored.
"""


@dataclass(frozen=True, slots=True)
class SemanticKey:
    """Key of a request for semantic lookups.

    Attributes:
        namespace: digest of `CacheKey.parts` without `text`. Only questions of one namespace are compared.
        text: question for the semantic lookup; None allows exact hits only.
        prompt: text of the last user message, to show to people.
    """

    namespace: str
    text: str | None
    prompt: str


@dataclass(frozen=True)
class CacheKey:
    """Keys of a request in the response cache.

    Attributes:
        exact: digest of `parts`.
        parts: everything that can change the response: body, tenant, backend, some headers.
        headers: names of the request headers whose values `parts` contains.
        compute_semantic: computes `semantic`.
    """

    exact: str
    parts: JsonObject
    headers: frozenset[str]
    compute_semantic: "Callable[[CacheKey], SemanticKey]" = field(repr=False, compare=False)

    @cached_property
    def semantic(self) -> SemanticKey:
        """The key for semantic lookups, which an exact hit does not need."""
        return self.compute_semantic(self)


@dataclass(frozen=True, slots=True)
class CacheHit:
    """The stored response that was served.

    Attributes:
        id: empty if several responses answer an array of inputs.
        age: seconds since storage.
        ttl: seconds until expiry; negative after expiry.
        match: the question of a semantic hit, and its scores.
        modalities: audio and image tokens of the response and its prompt, see `apis/modalities.py`; None without any.
    """

    id: str
    key: str
    age: float
    ttl: float
    prompt_tokens: int | None
    completion_tokens: int | None
    stale: Stale | None = None
    match: "Candidate | None" = None
    modalities: str | None = None


SingleRequest: TypeAlias = tuple[ApiRequest, CacheKey]
"""The request for one input of an array, and its key."""


@dataclass(slots=True, eq=False, repr=False)
class ArrayInputs:
    """The inputs of a request that are cached one by one.

    Attributes:
        keys: exact key of the single request for each input of the client's request, in order.
        missing: the single requests that no stored response answers. The exchange's request is for all of them.
        stored: the stored response to each single request that has one, by exact key, which may have expired. `finish`
            removes it.
        served: the stored responses that answer inputs, by exact key. `finish` removes them.
        stale: single requests that a stale response answers, which is renewed in the background.
        cached: inputs that stored responses answer.
        cached_tokens: tokens of the cached inputs; None if they are unknown.
    """

    keys: Sequence[str]
    missing: Sequence[SingleRequest]
    stored: Mapping[str, Entry] = field(default_factory=dict)
    served: Mapping[str, Entry] = field(default_factory=dict)
    stale: Sequence[SingleRequest] = ()
    cached: int = 0
    cached_tokens: int | None = 0

    @property
    def count(self) -> int:
        return len(self.keys)

    def serve(self, entries: Mapping[str, Entry]) -> list[Entry]:
        """Answer more inputs with stored responses. Return the stored response to each input that has one, in order."""
        self.served = {**self.served, **entries}
        served = [self.served[key] for key in self.keys if key in self.served]
        self.cached, self.cached_tokens = len(served), sum_tokens([entry.prompt_tokens for entry in served])
        return served


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to the client.

    Attributes:
        headers: lower-case names, possibly repeated.
        close: called once, after the last chunk or when the client disconnects.
        is_broken: the body will break off, because the backend already failed.
    """

    status: int
    headers: list[tuple[str, str]]
    body: bytes | AsyncIterator[bytes]
    close: Callable[[], None] = field(default=lambda: None)
    is_broken: bool = False


class Watch(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T], /) -> Awaitable[T]:
        """Return the result of `work`; cancel it when the client disconnects or its deadline passes."""


@dataclass(slots=True, eq=False)
class ResponseFacts:
    """What is known about one response of the backend. All exchanges that share the response refer to the same object.

    `open_response` creates it, and the response's reader and recorder fill it in. None is unknown, or not reported yet.

    Attributes:
        served_by: the upstream; None for the embedded engine.
        block_size: tokens per KV block of the backend; 0 if it is unknown.
        started: value of `time.perf_counter` at the start of the response; 0.0 if there is none.
        prefix: reuse of the prompt's prefix.
        first_chunk_seconds: from the call of the backend until the first chunk of a stream, which follows the prefill.
        seconds: from the call of the backend until its last chunk.
        usage: numbers of prompt and completion tokens.
        received_tokens: estimated tokens of the response so far: one for an event of a stream, or for four bytes of a body.
            Embeddings have none.
        estimated_usage: estimated numbers of tokens of a request that was not parsed, if its price matters.
        answer_digests: kind and digest of each part of the answer, which identify the next turn; None for several choices.
        response_id: the backend's id of the response; None if it has none.
        service_tier: the tier that served the request, see `apis/service_tiers.py`; None for the standard tier.
        modalities: its audio and image tokens, see `apis/modalities.py`; None without any.
        diagnosis: the provider's explanation why the prefix was not reused, see `apis/cache_diagnoses.py`.
        planned_id: the id under which the response will be stored, if nothing prevents it.
        entry_id: the stored response; None if it is not stored.
        not_stored: why the response is not stored; None if it is stored, if the request is not cacheable, or before its end.
        write: stores the response. After it has ended, `entry_id` and `not_stored` are final.
        upstream_status: the client does not receive it if the response breaks off before its head is sent; 0 if it is that
            of the exchange.
    """

    served_by: "ServingUpstream | None" = None
    block_size: int = 0
    started: float = 0.0
    prefix: PrefixReuse | None = None
    prefill_seconds: float | None = None
    first_chunk_seconds: float | None = None
    seconds: float | None = None
    usage: TokenCounts = (None, None)
    received_tokens: int = 0
    estimated_usage: TokenCounts = (None, None)
    answer_digests: tuple[tuple[str, bytes], ...] | None = None
    response_id: str | None = None
    service_tier: str | None = None
    modalities: str | None = None
    diagnosis: str | None = None
    planned_id: str | None = None
    entry_id: str | None = None
    not_stored: NotStored | None = None
    write: "Task[bool] | None" = None
    upstream_status: int = 0

    @property
    def is_engine(self) -> bool:
        """Whether the backend is a self-hosted engine, not a provider's API."""
        return self.served_by is None or self.served_by.is_engine

    @property
    def prompt_tokens(self) -> int | None:
        reported = None if self.prefix is None else self.prefix.prompt_tokens
        return self.usage[0] if reported is None else reported

    @property
    def completion_tokens(self) -> int | None:
        return self.usage[1]


@dataclass(slots=True, eq=False)
class EqualRequests:
    """Requests in flight with one exact key that cannot share a response, such as several samples.

    Attributes:
        write: the last start of storing one of their responses, on the clock `time.perf_counter`, and its task.
        known: whether the journal had an equal request, and a response of the backend to one, before these requests;
            None until the first of them is recorded.
    """

    write: "tuple[float, Task[bool]] | None" = None
    known: tuple[bool, bool] | None = None

    def has_stored_since(self, started: float) -> bool:
        """Whether a response was stored, or is being stored, since a value of `time.perf_counter`."""
        if self.write is None or self.write[0] < started:
            return False
        task = self.write[1]
        return not task.done() or (not task.cancelled() and task.exception() is None and task.result())


@dataclass(slots=True, eq=False)
class Exchange:
    """All facts about a request and its response. Comments name the code that sets the fields below them.

    Times of steps are values of `time.perf_counter`; 0.0 for a step that did not happen.

    Attributes:
        api: name of the cached API; None for other routes.
        arrived: seconds since the epoch.
        method, path: empty for the proxy's own routes and for background requests. `path` has no query.
        team: client whose quotas and budgets count the request, too, or which is a team itself; None without one.
        account: charges tokens to the client's quota; None if the proxy has no clients.
        cacheable: an equal request may get the same response.
        storable: also, neither the request nor its lifetime forbids storing the response.
        bypass_reason: reason token (see `journal/reasons.py`) if the lookups were skipped.
        stored_entry: the stored response to an equal request, which may have expired. `finish` removes it.
        is_entry_refused: a fresh response is stored, but the request's `no-cache` or `max-age` rejects it.
        inputs: the inputs of an array that are cached one by one; None for another request.
        was_queued: the event loop lagged, so the request waited, and has no semantic lookup.
        is_shadow_hit: in shadow mode, the response to a similar question would have been served. The request warms no cache.
        lookup_failed: the store or the embedder failed.
        requested_ttl: seconds to store the response; None uses the settings.
        computation: its start, if this exchange called the backend, and its response is storable.
        equal_requests: this request, and the equal ones in flight; None if the backend was not called for this request.
        is_concurrent: an equal request was in flight before, and could not share its response.
        was_collapsed: the response is shared with an identical request in flight.
        stored: the store committed the response before its head was sent, as the directive `confirm` demands.
        facts: the backend's response; empty facts without one.
        upstream_request_id: the upstream's own id of the request, which the client received in a header; None without one.
        unread_model: model of a request that was not parsed; empty if it is unknown.
        unread_delivery: the upstream that received a request that was not parsed; None for other requests.
        plugin: name of the plugin's layer that answered.
        reached_limit: see `KvproxyError.reached_limit`; None if no limit was reached.
        failure: reason token (see `journal/reasons.py`) of the error that ended the request.
        exact_done, semantic_done: end of each lookup.
        watch: awaits all steps after the exact lookup, and cancels them when the client disconnects; None never cancels them.
        first_byte, ended: start and end of the response to the client.
    """

    # http/exchange_middleware.py
    api: str | None
    request_id: str
    tenant: str = PUBLIC_TENANT  # Also http/routes.py.
    arrived: float = field(default_factory=time)
    method: str = ""
    path: str = ""
    traceparent: str | None = None
    started: float = field(default_factory=perf_counter)
    # http/client_authentication.py
    client: "ClientSettings | None" = None
    team: str | None = None
    account: "Account | None" = None
    # http/routes.py; the steps of flow/prepare/steps.py replace the request.
    request: ApiRequest | None = None
    watch: Watch | None = None
    # AddTraceHeader
    trace: Trace | None = None
    # RequestPath.answer and predict
    key: CacheKey | None = None
    cacheable: bool = False
    storable: bool = False
    bypass_reason: str | None = None
    # ExactHits
    stored_entry: Entry | None = None
    is_entry_refused: bool = False
    exact_done: float = 0.0
    # CachedInputs, which replaces the request, too
    inputs: ArrayInputs | None = None
    # LimitLoad
    was_queued: bool = False
    # SemanticHits, and StaleIfError
    lookup: "Lookup | None" = None
    semantic_done: float = 0.0
    is_shadow_hit: bool = False
    # All layers of flow/layers/cached.py
    lookup_failed: bool = False
    hit: CacheHit | None = None
    # PluginLayer
    plugin: str | None = None
    # UnparsedRequestCharge
    upstream_request_id: str | None = None
    unread_model: str = ""
    # http/routes.py
    unread_delivery: Delivery | None = None
    # JoinOrForward
    computation: "AnswerComputation | None" = None
    equal_requests: EqualRequests | None = None
    is_concurrent: bool = False
    was_collapsed: bool = False
    forward_reason: ForwardReason | None = None
    requested_ttl: float | None = None
    stored: bool = False
    facts: ResponseFacts = field(default_factory=ResponseFacts)
    client_disconnected: bool = False
    # The layer that answers, or record_failure
    layer: Layer = "refused"
    status: int = 0
    failure: str | None = None
    reached_limit: str | None = None
    first_byte: float = 0.0
    ended: float = 0.0

    @property
    def backend_started(self) -> float:
        """Start of the backend's response. A client that joins a request in flight did not wait from its start."""
        return max(self.facts.started, self.started) if self.facts.started else 0.0

    @property
    def was_sent(self) -> bool:
        """Whether an upstream received the request, so that it may cost money even if no response began."""
        delivery = self.unread_delivery if self.request is None else self.request.delivery
        return delivery is not None and delivery.received_at is not None

    @property
    def is_shadow_pair(self) -> bool:
        """Whether shadow mode compares this answered request with the response that it would have served."""
        is_answered = self.failure is None and not self.client_disconnected and self.status < 400
        return self.is_shadow_hit and is_answered and self.hit is None

    @property
    def has_stored_response(self) -> bool:
        """Whether a response to the request, or to an input of its array, is stored. It may have expired."""
        return self.stored_entry is not None or (self.inputs is not None and bool(self.inputs.stored))

    @property
    def inputs_to_store(self) -> Sequence[SingleRequest]:
        """The single requests whose responses are stored, if the exchange's request is for several inputs; else empty."""
        return self.inputs.missing if self.inputs is not None and len(self.inputs.missing) > 1 else ()

    @property
    def size_factor(self) -> int:
        """How many times as large as another stored response the stored response to the request may be."""
        return max(1, min(len(self.inputs_to_store), _MAX_SIZE_FACTOR))

    @property
    def keys_to_store(self) -> Sequence[str]:
        """The exact keys under which the backend's response is stored."""
        return [key.exact for _, key in self.inputs_to_store] or [self.cache_key.exact]

    @property
    def is_warming(self) -> bool:
        return self.request is not None and self.request.control.warming

    @property
    def requires_own_response(self) -> bool:
        """Whether the request must not share the response to an identical request in flight.

        Clients that send a sampled request several times at once want several samples.
        """
        request = self.api_request
        return request.control.no_cache or requests_sampling(request.body) or not self.storable

    @property
    def api_request(self) -> ApiRequest:
        assert self.request is not None
        return self.request

    @property
    def cache_key(self) -> CacheKey:
        assert self.key is not None
        return self.key
