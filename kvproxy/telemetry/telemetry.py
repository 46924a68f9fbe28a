"""Exports finished exchanges to OpenTelemetry, from a thread of its own."""

import logging
import threading
from collections import deque
from dataclasses import replace
from typing import Protocol

from kvproxy.apis.request import ApiRequest
from kvproxy.errors import SettingsError
from kvproxy.exchange import Exchange
from kvproxy.journal.record import Record, record_of
from kvproxy.settings.telemetry import TelemetrySettings
from kvproxy.telemetry.spans import Span, spans_of
from kvproxy.trace import HEADER, Trace

_INTERVAL = 0.2
_MAX_WAITING = 10_000
_log = logging.getLogger("kvproxy")


class Sink(Protocol):
    """Destination of spans and records; see `export.Exporter`."""

    def spans(self, spans: list[Span], trace: Trace) -> None: ...

    def record(self, record: Record) -> None: ...

    def close(self) -> None: ...


def begin_trace(exchange: Exchange, request: ApiRequest, share: float) -> ApiRequest:
    """Begin the trace of an exchange, and return its request with the header for the upstream; see `Trace.begin`."""
    exchange.trace = trace = Trace.begin(exchange.traceparent, share)
    return replace(request, headers={**request.headers, HEADER: trace.header})


class Telemetry:
    """Converts finished exchanges to spans and metrics.

    Args:
        sink: receives spans and records, on the thread.
        share: share of the new traces to export.
    """

    def __init__(self, sink: Sink, share: float) -> None:
        self._sink = sink
        self._share = share
        self._waiting: deque[Exchange] = deque()
        self.lost = 0
        """Exchanges that were dropped because too many waited."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def add(self, exchange: Exchange) -> None:
        """Add a finished exchange. It is exported later."""
        if exchange.api is None:
            return
        if len(self._waiting) >= _MAX_WAITING:
            self.lost += 1
        else:
            self._waiting.append(exchange)

    def close(self) -> None:
        """Export all waiting exchanges, and stop."""
        self._closing.set()
        self._thread.join()
        self._sink.close()

    def _run(self) -> None:
        while not self._closing.wait(_INTERVAL):
            self._export_all()
        self._export_all()

    def _export_all(self) -> None:
        while self._waiting:
            exchange = self._waiting.popleft()
            try:
                self._export(exchange)
            except Exception as error:
                _log.error("telemetry lost a request: %s", error or type(error).__name__)

    def _export(self, exchange: Exchange) -> None:
        record = record_of(exchange)
        self._sink.record(record)
        trace = exchange.trace or Trace.begin(exchange.traceparent, self._share)
        if trace.sampled:
            self._sink.spans(spans_of(exchange, record, trace), trace)


def open_telemetry(settings: TelemetrySettings) -> Telemetry | None:
    """Telemetry as the settings define it; None if it is off.

    Raises:
        SettingsError: OpenTelemetry is not installed.
    """
    if settings.endpoint is None:
        return None
    try:
        from kvproxy.telemetry.export import Exporter
    except ImportError as error:
        raise SettingsError(
            f"telemetry.endpoint needs OpenTelemetry ({error}): pip install 'kvproxy[telemetry]'"
        ) from None
    return Telemetry(Exporter(settings), settings.sample_rate)
