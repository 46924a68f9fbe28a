"""The journal: one record per request, written by a thread of its own."""

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from kvproxy.blocks.reuse_distance import LiveHitCurve
from kvproxy.errors import NotFound, SettingsError
from kvproxy.exchange import Exchange
from kvproxy.index import store as stored
from kvproxy.index.entry import Entry
from kvproxy.index.entry_redaction import Redactor
from kvproxy.index.errors import SchemaVersionError
from kvproxy.index.failure_log import FailureLog
from kvproxy.index.store.sqlite.connection import DatabaseFiles
from kvproxy.journal.cache_history import ResponseRemoved, ResponseStored
from kvproxy.journal.event_queue import Event, EventQueue
from kvproxy.journal.reader import JournalReader, Query
from kvproxy.journal.record import Record
from kvproxy.journal.record_writer import RecordWriter
from kvproxy.journal.schema import FILE, open_or_replace
from kvproxy.settings.journal import JournalSettings

_INTERVAL = 0.5
"""Seconds between two writes."""
_BATCH = 256
_PAUSE = 0.005
"""Seconds between two transactions, so that the event loop is not starved of the GIL."""
_PRUNE_INTERVAL = 10.0
_FAILURE = "the journal %s failed (%s); until it can be written, no records are kept"
_log = logging.getLogger("kvproxy")
T = TypeVar("T")


class Journal:
    """Receives finished requests and changes of the store. This base class stores nothing."""

    def add(self, exchange: Exchange) -> None: ...

    def record_stored(self, entry: Entry) -> None: ...

    def reader(self) -> JournalReader:
        """Open the file. Raises NotFound if the journal is disabled, KvproxyError if the file cannot be read."""
        raise NotFound("no journal is kept here: set journal.enabled = true to see what became of requests")

    def read(self, work: Callable[[JournalReader], T], default: T) -> T:
        """Return the result of `work` with the open file; `default` if the journal is disabled."""
        return default

    def reuse_curves(self) -> dict[str, LiveHitCurve]:
        """Return prefix cache hits by pool size since the start, for each upstream; "" is the embedded engine."""
        return {}

    def recent_question(self, number: int) -> str | None:
        """Return the question of a recent record by its number; None if it is not in memory."""
        return None

    def close(self) -> None: ...


class FileJournal(Journal):
    """A journal in an SQLite file. Threads may share it.
    Raises SettingsError if the file cannot be used.
    """

    def __init__(
        self,
        path: Path,
        settings: JournalSettings,
        clock: Callable[[], float] = time.time,
        redact: Redactor | None = None,
    ) -> None:
        try:
            self._connection = open_or_replace(path, clock)
            self._writer = RecordWriter(self._connection, settings, clock, redact)
            self._files = DatabaseFiles(path, self._connection)
        except SchemaVersionError as error:
            raise SettingsError(
                f"another version of kvproxy created the journal {path} (schema version {error.found}): move it away, or set"
                " journal.enabled = false"
            ) from None
        except (sqlite3.Error, OSError) as error:
            raise SettingsError(
                f"cannot open the journal {path}: {error}; move it away, or set journal.enabled = false"
            ) from None
        self.path = path
        self._clock = clock
        self.lost = 0
        """Records that could not be written."""
        self._failures = FailureLog()
        self._lost_since = 0
        self._queue = EventQueue()
        self._wake = threading.Event()
        self._writing = threading.Lock()
        self._closing = False
        self._pruned = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def add(self, exchange: Exchange) -> None:
        if exchange.api is not None and not self._queue.put(exchange):
            self.lost += 1

    def record_stored(self, entry: Entry) -> None:
        self._queue.put_changes([ResponseStored(entry.key, entry.id, entry.expires, self._clock(), entry.request_id)])

    def record_removed(self, entries: Iterable[ResponseRemoved]) -> None:
        self._queue.put_changes(entries)

    def latest(self, limit: int) -> list[Record]:
        """Write all queued events, and return the last records, newest first."""
        self.flush()
        return self.read(lambda reader: reader.records(Query(limit=limit)), [])

    def reader(self) -> JournalReader:
        return JournalReader(self.path)

    def read(self, work: Callable[[JournalReader], T], default: T) -> T:
        with contextlib.closing(JournalReader(self.path)) as reader:
            return work(reader)

    def reuse_curves(self) -> dict[str, LiveHitCurve]:
        return dict(self._writer.reuse_curves)

    def recent_question(self, number: int) -> str | None:
        return self._writer.questions.get(number)

    def flush(self, pause: float = 0.0) -> None:
        """Write the queued events, with a pause in seconds between transactions."""
        with self._writing:
            left = len(self._queue)
            while left > 0:
                events = self._queue.take(min(left, _BATCH))
                left -= max(1, len(events))
                self._write(events)
                self._wake.wait(pause)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(_INTERVAL)
            self.flush(_PAUSE)
            if time.monotonic() - self._pruned > _PRUNE_INTERVAL:
                self._prune()
        self.flush()

    def _write(self, events: Sequence[Event]) -> None:
        try:
            self._check_file()
            self._writer.write(events)
            message = "the journal %s can be written again; %d records were lost"
            if self._failures.log_recovery(message, self.path, self._lost_since):
                self._lost_since = 0
        except sqlite3.Error as error:
            # The proxy keeps serving, for example with a full disk.
            self._lost_since += self._count_lost(events)
            self._failures.log_failure(_FAILURE, self.path, error)
        except Exception:
            for event in events:
                try:
                    self._writer.write([event])
                except Exception as error:
                    lost = self._count_lost([event])
                    _log.error("the journal lost %d records: %s", lost, error or type(error).__name__)

    def _check_file(self) -> None:
        """Raise sqlite3.OperationalError if the file was deleted or replaced, because writes to it would be lost."""
        if self._files.were_replaced():
            self._files.checkpoint()
            raise sqlite3.OperationalError("it was deleted or replaced: restart to use what is there now")

    def _count_lost(self, events: Sequence[Event]) -> int:
        lost = sum(isinstance(event, Exchange) for event in events)
        self.lost += lost
        return lost

    def _prune(self) -> None:
        self._pruned = time.monotonic()
        try:
            with self._writing:
                self._check_file()
                while self._writer.prune() and not self._closing:
                    pass
        except sqlite3.Error as error:
            self._failures.log_failure(_FAILURE, self.path, error)
        except Exception as error:
            _log.error("the journal could not be pruned, and is tried again: %s", error)

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join()
        self._connection.close()


def open_journal(
    data: Path,
    settings: JournalSettings,
    store: stored.Store,
    clock: Callable[[], float] = time.time,
    redact: Redactor | None = None,
) -> Journal:
    """Open the journal of a data folder; it also records removals from the store. Raises SettingsError."""
    if not settings.enabled:
        return Journal()
    journal = FileJournal(data / FILE, settings, clock, redact)

    def removed(entries: Sequence[stored.RemovedEntry]) -> None:
        now = clock()
        journal.record_removed(
            ResponseRemoved(each.key, each.reason, now) for each in entries if each.reason not in (None, "replaced")
        )

    store.removal_listeners.append(removed)
    return journal
