"""The observers, which receive each exchange once, when it has ended."""

from typing import Protocol

from kvproxy.exchange import Exchange
from kvproxy.flow.answer import Answerer
from kvproxy.telemetry.process_log import log_access


class Observer(Protocol):
    def finished(self, exchange: Exchange) -> None: ...


class CountRequest:
    """Counts the request in the metrics."""

    def __init__(self, parts: Answerer) -> None:
        self.finished = parts.count_request


class WriteRecord:
    """Writes the request's record to the journal."""

    def __init__(self, parts: Answerer) -> None:
        self.finished = parts.journal.add


class ExportSpans:
    """Exports the request's spans to OpenTelemetry."""

    def __init__(self, parts: Answerer) -> None:
        self.finished = parts.export_spans


class KeepPrefixWarm:
    """Keeps the prompt's prefix cached until the session continues, if the rule says so."""

    def __init__(self, parts: Answerer) -> None:
        self.finished = parts.keep_warm.on_finish


class RememberToken:
    """Remembers that the upstream has accepted the client's token."""

    def __init__(self, parts: Answerer) -> None:
        self.finished = parts.tenants.record_answer


class LogAccess:
    """Writes a line to the access log."""

    def __init__(self, parts: Answerer) -> None: ...

    def finished(self, exchange: Exchange) -> None:
        log_access(exchange)
