"""Sends spans and metrics by OTLP over HTTP."""

from collections.abc import Iterable, Sequence

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
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from kvproxy import __version__
from kvproxy.exchange import Exchange
from kvproxy.journal.record import Record, record_of
from kvproxy.settings.telemetry import TelemetrySettings
from kvproxy.telemetry.spans import Span, common_attributes, spans_of
from kvproxy.trace_context import Trace

_TIMEOUT_SECONDS = 5.0
_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
_SECONDS = (0.001, 0.0025, 0.005, *(0.01 * 2**power for power in range(14)))
_TOKENS = tuple(float(4**power) for power in range(14))


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
    """Exports finished exchanges. OpenTelemetry sends them in batches from its own threads."""

    def __init__(self, settings: TelemetrySettings) -> None:
        endpoint = str(settings.endpoint).rstrip("/")
        self._sample_rate = settings.sample_rate
        resource = Resource.create({"service.name": settings.service, "service.version": __version__})
        self._ids = _PresetIds()
        self._spans = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        sender = OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=_TIMEOUT_SECONDS)
        self._spans.add_span_processor(
            BatchSpanProcessor(sender, schedule_delay_millis=settings.interval * 1000, export_timeout_millis=5000)
        )
        self._tracer = self._spans.get_tracer("kvproxy", __version__)
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(f"{endpoint}/v1/metrics", timeout=_TIMEOUT_SECONDS),
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
        """Add an exchange to the metrics, and queue its spans. Not thread-safe: call it from the event loop."""
        if exchange.api is None:
            return
        record = record_of(exchange)
        self._measure(record)
        trace = exchange.trace or Trace.begin(exchange.traceparent, self._sample_rate)
        if trace.sampled:
            self._send(spans_of(exchange, record, trace), trace)

    def _send(self, spans: Iterable[Span], trace: Trace) -> None:
        outer = None
        if trace.parent is not None:
            flags, ids = TraceFlags(TraceFlags.SAMPLED), (int(trace.id, 16), int(trace.parent, 16))
            outer = set_span_in_context(NonRecordingSpan(SpanContext(*ids, is_remote=True, trace_flags=flags)))
        self._ids.trace = trace.id
        inner = None
        for span in spans:
            self._ids.span = span.id
            made = self._tracer.start_span(
                span.name,
                outer if inner is None else inner,
                _KINDS[span.kind],
                dict(span.attributes),
                start_time=span.start,
                record_exception=False,
            )
            inner = set_span_in_context(made) if inner is None else inner
            for name, moment in span.events.items():
                made.add_event(name, timestamp=moment)
            if span.error is not None:
                made.set_status(Status(StatusCode.ERROR, span.error))
            made.end(max(span.start, span.end))

    def _measure(self, record: Record) -> None:
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
        self._spans.shutdown()
        self._metrics.shutdown(_TIMEOUT_SECONDS * 1000)
