from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kvproxy.apis.json import Json
from kvproxy.exchange import Exchange
from kvproxy.journal.record import Record, is_warmed_by_backend
from kvproxy.trace_context import Trace

Value: TypeAlias = str | int | float | bool
_OPERATIONS = {
    "chat": "chat",
    "messages": "chat",
    "responses": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}
_PROVIDERS = {"messages": "anthropic"}
_REQUEST_FIELDS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "n": "gen_ai.request.choice.count",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}
_BACKEND = ("prefix", "forward", "bypass", "shared", "revalidated")
_BROKEN = ("error-upstream", "error-broken", "disconnected-reading", "disconnected-waiting")


@dataclass(frozen=True, slots=True)
class Span:
    """A finished span.

    Attributes:
        start, end: nanoseconds since the epoch.
        id: None if the exporter creates the id.
        attributes: never contain text of prompts or responses.
        events: times of events by name, in nanoseconds since the epoch.
    """

    name: str
    kind: Literal["server", "client", "internal"]
    start: int
    end: int
    id: str | None = None
    attributes: Mapping[str, Value] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None


def common_attributes(record: Record) -> dict[str, Value]:
    """Return the attributes of both spans and metrics, by OpenTelemetry's semantic conventions."""
    found: dict[str, Value] = {
        "gen_ai.operation.name": _OPERATIONS.get(record.api, record.api),
        "gen_ai.provider.name": _PROVIDERS.get(record.api, "openai"),
        "kvproxy.layer": record.layer,
        "kvproxy.reason": record.reason,
    }
    if record.model:
        found["gen_ai.request.model"] = record.model
    if record.status >= 400:
        found["error.type"] = (
            record.reason if record.layer in ("error", "refused", "disconnected", "warming") else str(record.status)
        )
    return found


def spans_of(exchange: Exchange, record: Record, trace: Trace) -> Iterator[Span]:
    """Yield the span of the exchange, then the spans of its steps, such as the semantic lookup."""

    def nanoseconds(perf_counter: float) -> int:
        """Convert a value of `time.perf_counter` to nanoseconds since the epoch."""
        return int((exchange.arrived + perf_counter - exchange.started) * 1e9)

    after, end = nanoseconds(exchange.started), nanoseconds(exchange.ended or exchange.first_byte or exchange.started)
    attributes = common_attributes(record)
    error = str(attributes["error.type"]) if "error.type" in attributes else None
    name = " ".join(filter(None, (str(attributes["gen_ai.operation.name"]), record.model)))
    events = {"gen_ai.first_token": nanoseconds(exchange.first_byte)} if exchange.first_byte else {}
    attributes |= _exchange_attributes(exchange, record)
    yield Span(name, "server", after, end, trace.span, attributes, events, error)
    if exchange.exact_done:
        start, after = after, nanoseconds(exchange.exact_done)
        yield Span("lookup exact", "internal", start, after, attributes={"kvproxy.hit": exchange.layer == "exact"})
    if exchange.semantic_done:
        start, after = after, nanoseconds(exchange.semantic_done)
        judged: dict[str, Value] = {"kvproxy.hit": exchange.layer == "semantic"}
        yield Span("lookup semantic", "internal", start, after, attributes=judged | _neighbour_attributes(record))
    if record.layer not in _BACKEND and record.reason not in _BROKEN and not is_warmed_by_backend(exchange):
        return
    known: dict[str, Value] = {"gen_ai.request.model": record.model} if record.model else {}
    opened = {"answer begins": nanoseconds(exchange.backend_started)} if exchange.backend_started else {}
    error = record.reason if exchange.failure is not None else str(record.status) if record.status >= 400 else None
    if record.layer == "shared":
        yield Span("wait for the same request", "internal", after, end, None, known, opened, error)
    elif exchange.upstream is None and record.layer != "bypass" and record.reason != "error-upstream":
        yield Span("engine", "internal", after, end, None, known, opened, error)
    else:
        if exchange.upstream:
            known["server.address"] = exchange.upstream
        yield Span("upstream", "client", after, end, trace.call, known, opened, error)


def _exchange_attributes(exchange: Exchange, record: Record) -> dict[str, Value]:
    values: dict[str, Json] = {
        "http.response.status_code": record.status,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.reused_tokens,
        "kvproxy.request_id": record.request_id,
        "kvproxy.client": record.client,
        "kvproxy.entry": record.entry,
        "kvproxy.predicted_tokens": record.predicted_tokens,
        "kvproxy.tags": record.tags or None,
    }
    if exchange.request is not None:
        values["gen_ai.request.stream"] = exchange.request.stream
        values |= {
            _REQUEST_FIELDS[name]: value for name, value in exchange.request.body.items() if name in _REQUEST_FIELDS
        }
    return {name: value for name, value in values.items() if isinstance(value, str | int | float)}


def _neighbour_attributes(record: Record) -> dict[str, Value]:
    values = {
        "kvproxy.similarity": record.similarity,
        "kvproxy.score": record.score,
        "kvproxy.guard": record.guard,
        "kvproxy.near": record.near,
    }
    return {name: value for name, value in values.items() if value is not None}
