"""Sends spans and metrics of finished exchanges by OTLP over HTTP."""

import logging
import time
from collections.abc import Sequence
from threading import Thread
from typing import TypeAlias

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from kvproxy import __version__
from kvproxy.apis.json import Json
from kvproxy.apis.trace_context import Trace
from kvproxy.exchange import Exchange
from kvproxy.journal.exchange_record import is_warmed_by_backend, record_of
from kvproxy.journal.record import Record
from kvproxy.settings.telemetry import TelemetrySettings
from kvproxy.telemetry.collector_session import CollectorSession

_TIMEOUT_SECONDS = 5.0
_CLOSE_SECONDS = 3.0
_log = logging.getLogger("kvproxy")
_SECONDS = (0.001, 0.0025, 0.005, *(0.01 * 2**power for power in range(14)))
_TOKENS = tuple(float(4**power) for power in range(14))
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
_BROKEN = (
    "error-upstream",
    "error-broken",
    "error-timeout",
    "error-access",
    "error-stopped",
    "disconnected-reading",
    "disconnected-waiting",
    "disconnected-timeout",
)


def common_attributes(record: Record) -> dict[str, Value]:
    """Return the attributes of both spans and metrics, by OpenTelemetry's semantic conventions."""
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": _OPERATIONS.get(record.api, record.api),
        "gen_ai.provider.name": _PROVIDERS.get(record.api, "openai"),
        "kvproxy.layer": record.layer,
        "kvproxy.reason": record.reason,
    }
    if record.model:
        attributes["gen_ai.request.model"] = record.model
    if record.status >= 400:
        attributes["error.type"] = (
            record.reason if record.layer in ("error", "refused", "disconnected", "warming") else str(record.status)
        )
    return attributes


def _exchange_attributes(exchange: Exchange, record: Record) -> dict[str, Value]:
    values: dict[str, Json] = {
        "http.response.status_code": record.status,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.reused_tokens,
        "gen_ai.usage.cache_creation.input_tokens": _written_tokens(exchange),
        "kvproxy.request_id": record.request_id,
        "kvproxy.client": record.client,
        "kvproxy.entry": record.entry,
        "kvproxy.predicted_tokens": record.predicted_tokens,
        "kvproxy.tags": record.tags or None,
    }
    if exchange.request is not None:
        values["gen_ai.request.stream"] = exchange.request.stream
        if exchange.request.stream and record.first_ms is not None and record.status < 400:
            values["gen_ai.response.time_to_first_chunk"] = record.first_ms / 1000
        values |= {
            _REQUEST_FIELDS[name]: value for name, value in exchange.request.body.items() if name in _REQUEST_FIELDS
        }
    return {name: value for name, value in values.items() if isinstance(value, str | int | float)}


def _written_tokens(exchange: Exchange) -> int | None:
    """Return the tokens written to the provider's cache; None if it does not report them, or the response is a hit."""
    prefix = exchange.facts.prefix if exchange.hit is None else None
    if prefix is None or (prefix.written_5m is None and prefix.written_1h is None):
        return None
    return (prefix.written_5m or 0) + (prefix.written_1h or 0)


def _neighbour_attributes(record: Record) -> dict[str, Value]:
    values = {
        "kvproxy.similarity": record.similarity,
        "kvproxy.score": record.score,
        "kvproxy.guard": record.guard,
        "kvproxy.near": record.near,
    }
    return {name: value for name, value in values.items() if value is not None}


def _end_span(span: Span, start: int, end: int, error: str | None = None) -> None:
    if error is not None:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end(max(start, end))


class _PresetIds(IdGenerator):
    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.span: str | None = None
        self.trace: str | None = None

    def generate_span_id(self) -> int:
        return self._random.generate_span_id() if self.span is None else int(self.span, 16)

    def generate_trace_id(self) -> int:
        return self._random.generate_trace_id() if self.trace is None else int(self.trace, 16)


class Exporter:
    """Exports finished exchanges. OpenTelemetry sends them in batches from its own threads, each within `timeout` seconds."""

    def __init__(self, settings: TelemetrySettings, timeout: float = _TIMEOUT_SECONDS) -> None:
        endpoint = str(settings.endpoint).rstrip("/")
        self._sample_rate = settings.sample_rate
        resource = Resource.create({"service.name": settings.service, "service.version": __version__})
        self._ids = _PresetIds()
        self._spans = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        sender = OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=timeout, session=CollectorSession())
        self._spans.add_span_processor(
            BatchSpanProcessor(sender, schedule_delay_millis=settings.interval * 1000, export_timeout_millis=5000)
        )
        self._tracer = self._spans.get_tracer("kvproxy", __version__)
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(f"{endpoint}/v1/metrics", timeout=timeout, session=CollectorSession()),
            export_interval_millis=settings.interval * 1000,
        )
        self._metrics = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        meter = self._metrics.get_meter("kvproxy", __version__)

        def histogram(name: str, unit: str, text: str, bounds: Sequence[float]) -> Histogram:
            return meter.create_histogram(name, unit, text, explicit_bucket_boundaries_advisory=bounds)

        self._duration = histogram("gen_ai.server.request.duration", "s", "Time until an answer has ended.", _SECONDS)
        self._first = histogram("gen_ai.server.time_to_first_token", "s", "Time until an answer begins.", _SECONDS)
        self._tokens = histogram("gen_ai.client.token.usage", "{token}", "Tokens of prompts and of answers.", _TOKENS)
        self._reused = meter.create_counter(
            "kvproxy.reused_tokens", "{token}", "Tokens of prompts that the backend reused."
        )

    def add(self, exchange: Exchange) -> None:
        """Add an exchange to the metrics, and queue its spans. Call it from the event loop."""
        if exchange.api is None:
            return
        record = record_of(exchange)
        self._record_metrics(record)
        trace = exchange.trace or Trace.begin(exchange.traceparent, self._sample_rate)
        if trace.sampled:
            self._add_spans(exchange, record, trace)

    def _add_spans(self, exchange: Exchange, record: Record, trace: Trace) -> None:
        """Queue the span of the exchange, and the spans of its steps, such as the semantic lookup."""

        def nanoseconds(perf_counter: float) -> int:
            """Convert a value of `time.perf_counter` to nanoseconds since the epoch."""
            return int((exchange.arrived + perf_counter - exchange.started) * 1e9)

        start, end = (
            nanoseconds(exchange.started),
            nanoseconds(exchange.ended or exchange.first_byte or exchange.started),
        )
        attributes = common_attributes(record)
        error = str(attributes["error.type"]) if "error.type" in attributes else None
        name = " ".join(filter(None, (str(attributes["gen_ai.operation.name"]), record.model)))
        context = None
        if trace.parent is not None:
            flags, ids = TraceFlags(TraceFlags.SAMPLED), (int(trace.id, 16), int(trace.parent, 16))
            context = set_span_in_context(NonRecordingSpan(SpanContext(*ids, is_remote=True, trace_flags=flags)))
        self._ids.trace, self._ids.span = trace.id, trace.span
        attributes |= _exchange_attributes(exchange, record)
        whole = self._tracer.start_span(name, context, SpanKind.SERVER, attributes, start_time=start)
        if exchange.first_byte:
            whole.add_event("answer begins", timestamp=nanoseconds(exchange.first_byte))
        _end_span(whole, start, end, error)
        self._ids.span, context = None, set_span_in_context(whole)
        for layer, done in (("exact", exchange.exact_done), ("semantic", exchange.semantic_done)):
            if done:
                attributes = {"kvproxy.hit": exchange.layer == layer}
                attributes |= _neighbour_attributes(record) if layer == "semantic" else {}
                lookup = self._tracer.start_span(f"lookup {layer}", context, attributes=attributes, start_time=start)
                _end_span(lookup, start, nanoseconds(done))
                start = nanoseconds(done)
        if record.layer not in _BACKEND and record.reason not in _BROKEN and not is_warmed_by_backend(exchange):
            return
        name, kind = "wait for the same request" if record.layer == "shared" else "engine", SpanKind.INTERNAL
        attributes = {"gen_ai.request.model": record.model} if record.model else {}
        is_bypass = record.layer == "bypass" or record.reason == "error-upstream"
        if record.layer != "shared" and (record.upstream is not None or is_bypass):
            name, kind, self._ids.span = "upstream", SpanKind.CLIENT, trace.call
            attributes |= {"server.address": record.upstream} if record.upstream else {}
        backend = self._tracer.start_span(name, context, kind, attributes, start_time=start)
        if exchange.backend_started:
            backend.add_event("answer begins", timestamp=nanoseconds(exchange.backend_started))
        error = record.reason if exchange.failure is not None else str(record.status) if record.status >= 400 else None
        _end_span(backend, start, end, error)

    def _record_metrics(self, record: Record) -> None:
        attributes = common_attributes(record)
        if record.total_ms is not None:
            self._duration.record(record.total_ms / 1000, attributes)
        if record.first_ms is not None and record.status < 400:
            self._first.record(record.first_ms / 1000, attributes)
        for kind, tokens in (("input", record.prompt_tokens), ("output", record.completion_tokens)):
            if tokens is not None:
                self._tokens.record(tokens, {**attributes, "gen_ai.token.type": kind})
        if record.reused_tokens:
            self._reused.add(record.reused_tokens, attributes)

    def close(self) -> None:
        """Send what is queued, for at most three seconds."""
        # The SDK would wait for each batch in turn. Its threads and these do not keep the process alive.
        stops = [
            Thread(target=self._spans.shutdown, daemon=True),
            Thread(target=self._metrics.shutdown, args=(_CLOSE_SECONDS * 1000,), daemon=True),
        ]
        end = time.monotonic() + _CLOSE_SECONDS
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join(max(0.0, end - time.monotonic()))
        if any(stop.is_alive() for stop in stops):
            _log.warning("the collector did not accept the last spans and metrics within %g s", _CLOSE_SECONDS)
