"""Telemetry hooks in where the journal does: what becomes of each request passes here once, when it is over."""

import logging
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from kvproxy.apis.request import ApiRequest
from kvproxy.errors import SettingsError
from kvproxy.index.entry import Entry
from kvproxy.journal.draft import Draft
from kvproxy.journal.finished import finished
from kvproxy.journal.journal import Journal
from kvproxy.journal.past import Gone
from kvproxy.journal.reader import Reader
from kvproxy.journal.record import Record
from kvproxy.journal.savings import Saving
from kvproxy.settings.telemetry import TelemetrySettings
from kvproxy.telemetry.spans import Span, spans_of
from kvproxy.trace import HEADER, Trace

_EVERY = 0.2  # Seconds between two rounds of the thread that makes spans.
_MOST_WAITING = 10_000
_log = logging.getLogger("kvproxy")


class Sink(Protocol):
    """Where spans and records go; see `export.Exporter`."""

    def spans(self, spans: list[Span], trace: Trace) -> None: ...

    def record(self, record: Record) -> None: ...

    def close(self) -> None: ...


def begin_trace(request: ApiRequest, share: float) -> ApiRequest:
    """A request with its trace, of which the upstream is told; see `Trace.begin`."""
    trace = Trace.begin(request.headers.get(HEADER), share)
    return replace(request, headers={**request.headers, HEADER: trace.header}, trace=trace)


class TracedJournal:
    """A journal that shows telemetry what it is given. Nothing is made of it on the event loop.

    Args:
        journal: keeps the records.
        sink: gets spans and figures, in a thread.
        share: of the traces that begin here, those that are sent.
    """

    def __init__(self, journal: Journal, sink: Sink, share: float) -> None:
        self._journal = journal
        self._sink = sink
        self._share = share
        self._waiting: deque[Draft] = deque()
        self.lost = 0
        """Requests of which nothing was sent, because too many waited."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def add(self, draft: Draft) -> None:
        self._journal.add(draft)
        if len(self._waiting) >= _MOST_WAITING:
            self.lost += 1
        else:
            self._waiting.append(draft)

    def kept(self, entry: Entry) -> None:
        self._journal.kept(entry)

    def gone(self, entries: Iterable[Gone]) -> None:
        self._journal.gone(entries)

    def latest(self, limit: int) -> list[Record]:
        return self._journal.latest(limit)

    def saved(self) -> list[Saving]:
        return self._journal.saved()

    def reader(self) -> Reader:
        return self._journal.reader()

    def asked(self, number: int) -> str | None:
        return self._journal.asked(number)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._sink.close()
        self._journal.close()

    def _run(self) -> None:
        while not self._closing.wait(_EVERY):
            self._send()
        self._send()

    def _send(self) -> None:
        while self._waiting:
            draft = self._waiting.popleft()
            try:
                self._tell(draft)
            except Exception as error:
                # Of an odd request nothing is sent; the others are none of its business.
                _log.error("telemetry lost a request: %s", error or type(error).__name__)

    def _tell(self, draft: Draft) -> None:
        record = finished(draft)
        self._sink.record(record)
        given = None if draft.request is None else draft.request.trace
        trace = given if given is not None else Trace.begin(draft.traceparent, self._share)
        if trace.sampled:
            self._sink.spans(spans_of(draft, record, trace), trace)


def with_telemetry(journal: Journal, settings: TelemetrySettings) -> Journal:
    """The journal, with telemetry where that is on.

    Raises:
        SettingsError: OpenTelemetry is not installed.
    """
    if settings.endpoint is None:
        return journal
    try:
        from kvproxy.telemetry.export import Exporter
    except ImportError as error:
        raise SettingsError(
            f"telemetry.endpoint needs OpenTelemetry ({error}): pip install 'kvproxy[telemetry]'"
        ) from None
    return TracedJournal(journal, Exporter(settings), settings.share)
