"""Records of requests, as the journal stores them; exchange_record.py makes them."""

from dataclasses import dataclass
from typing import Literal

from kvproxy.journal.request_regions import Regions
from kvproxy.layers import Layer as ExchangeLayer
from kvproxy.settings.access import CLIENT_PREFIX

# Commands and charts list layers in this order.
Layer = Literal["exact", "semantic", "shared", "prefix", ExchangeLayer, "warming"]
"""Source of a response, as in `layers.Layer`, or `shared`, `prefix`, or `warming`.

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
    estimated_prompt_tokens: int | None = None
    estimated_completion_tokens: int | None = None
    service_tier: str | None = None
    upstream_request_id: str | None = None
    response_id: str | None = None
    team: str | None = None
    reached_limit: str | None = None
    verdict: str | None = None
    modalities: str | None = None
    inputs: int | None = None
    inputs_cached: int | None = None
    inputs_cached_tokens: int | None = None
    proxy: str | None = None


@dataclass(slots=True)
class RecordWithQuestions(Record):
    """A record with its question, and the stored question that was compared with it; None if unknown.

    `cost` is the provider's price of prompt and response: 0 for a hit, and None if a price or the usage is unknown. `written_5m`
    and `written_1h` are prompt tokens that were written to the provider's cache, for its default lifetime and for one hour.
    `lost` has the prompt tokens that were not reused, by cause, and `lost_tokens` those that a cache could have had. Their reuse
    would have saved `lost_cost`. `first_change` is the first changed text, and `session` the
    number of its session.
    """

    question: str | None = None
    stored_question: str | None = None
    cost: float | None = None
    written_5m: int | None = None
    written_1h: int | None = None
    lost: dict[str, int] | None = None
    lost_tokens: int | None = None
    lost_cost: float | None = None
    first_change: str | None = None
    session: int | None = None


OF_TENANT = "(tenant = ? or client = ?)"
"""SQL condition for the requests of a tenant, or of the client with this name; both values are the name."""
OF_TAG = "replace(',' || tags || ',', ?, '') <> ',' || tags || ','"
"""SQL condition for the requests with a tag; its value is the tag between commas."""
CLIENT_OR_TENANT = "coalesce(client, tenant)"
"""SQL expression for the client of a request's key, or else its tenant, by which savings and bills group requests, too."""


def client_name(tenant: str) -> str | None:
    """Return the client's name in a tenant `client:NAME`; None if the tenant names no client."""
    return tenant[len(CLIENT_PREFIX) :].partition("/")[0] if tenant.startswith(CLIENT_PREFIX) else None


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
