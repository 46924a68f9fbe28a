"""The spans of a request, made from its record when it is over."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kvproxy.apis.json import Json
from kvproxy.journal.draft import Draft
from kvproxy.journal.record import Record
from kvproxy.trace import Trace

Value: TypeAlias = str | int | float | bool
Moment: TypeAlias = Callable[[float], int]
"""Nanoseconds since the epoch of a moment of `time.perf_counter`."""
_OPERATIONS = {
    "chat": "chat",
    "messages": "chat",
    "responses": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}
_PROVIDERS = {"messages": "anthropic"}
_ASKED = {
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
_BACKEND = ("prefix", "forward", "bypass", "shared", "renewed")
_BROKEN = ("error-upstream", "error-broken", "gone-reading", "gone-waiting")


@dataclass(frozen=True, slots=True)
class Span:
    """A span that is over.

    Attributes:
        name, kind: as OpenTelemetry has them.
        start, end: nanoseconds since the epoch.
        id: its own, where it was told to somebody; None for a new one.
        attributes: what is known; no text of a prompt or of an answer.
        events: moments in it, by name.
        error: what went wrong.
    """

    name: str
    kind: Literal["server", "client", "internal"]
    start: int
    end: int
    id: str | None = None
    attributes: Mapping[str, Value] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    error: str | None = None


def general(record: Record) -> dict[str, Value]:
    """What tells requests apart in traces and metrics, by the names of OpenTelemetry's conventions where there is one."""
    found: dict[str, Value] = {
        "gen_ai.operation.name": _OPERATIONS.get(record.api, record.api),
        "gen_ai.provider.name": _PROVIDERS.get(record.api, "openai"),
        "kvproxy.layer": record.layer,
        "kvproxy.reason": record.reason,
    }
    if record.model:
        found["gen_ai.request.model"] = record.model
    if record.status >= 400:
        found["error.type"] = record.reason if record.layer in ("error", "refused", "gone") else str(record.status)
    return found


def spans_of(draft: Draft, record: Record, trace: Trace) -> list[Span]:
    """The span of a request, and after it those of its steps.

    Args:
        draft: tells when its steps were taken.
        record: made of the draft.
        trace: its ids.
    """

    def moment(clock: float) -> int:
        return int((draft.time + clock - draft.began) * 1e9)

    end = moment(draft.ended or draft.first or draft.began)
    attributes = general(record)
    error = str(attributes["error.type"]) if "error.type" in attributes else None
    name = " ".join(filter(None, (str(attributes["gen_ai.operation.name"]), record.model)))
    events = {"gen_ai.first_token": moment(draft.first)} if draft.first else {}
    whole = Span(name, "server", moment(draft.began), end, trace.span, attributes | _more(draft, record), events, error)
    return [whole, *_steps(draft, record, trace, moment(draft.began), end, moment)]


def _steps(
    draft: Draft,
    record: Record,
    trace: Trace,
    begin: int,
    end: int,
    moment: Moment,
) -> Iterator[Span]:
    after = begin
    if draft.looked:
        after = moment(draft.looked)
        yield Span("lookup exact", "internal", begin, after, attributes={"kvproxy.hit": record.layer == "exact"})
    if draft.judged:
        start, after = after, moment(draft.judged)
        judged: dict[str, Value] = {"kvproxy.hit": record.layer == "semantic"}
        yield Span("lookup semantic", "internal", start, after, attributes=judged | _neighbour(record))
    if record.layer not in _BACKEND and record.reason not in _BROKEN:
        return
    known = {"gen_ai.request.model": record.model} if record.model else {}
    opened = {"answer begins": moment(draft.opened)} if draft.opened else {}
    error = record.reason if draft.failure is not None else str(record.status) if record.status >= 400 else None
    if record.layer == "shared":
        yield Span("wait for the same request", "internal", after, end, None, known, opened, error)
    elif draft.upstream is None and record.layer != "bypass" and record.reason != "error-upstream":
        yield Span("engine", "internal", after, end, None, known, opened, error)
    else:
        at = {"server.address": draft.upstream} if draft.upstream else {}
        yield Span("upstream", "client", after, end, trace.call, known | at, opened, error)


def _more(draft: Draft, record: Record) -> dict[str, Value]:
    """What is known of a request beside what tells requests apart."""
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
    if draft.request is not None:
        values["gen_ai.request.stream"] = draft.request.stream
        values |= {_ASKED[name]: value for name, value in draft.request.body.items() if name in _ASKED}
    return {name: value for name, value in values.items() if isinstance(value, str | int | float)}


def _neighbour(record: Record) -> dict[str, Value]:
    values = {
        "kvproxy.similarity": record.similarity,
        "kvproxy.score": record.score,
        "kvproxy.guard": record.guard,
        "kvproxy.near": record.near,
    }
    return {name: value for name, value in values.items() if value is not None}
