"""The journal: one record per request, written by a thread of the journal."""

import asyncio
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from kvproxy.blocks.reuse_distance import LiveHitCurve
from kvproxy.errors import NotFound, StorageFailed
from kvproxy.exchange import Exchange
from kvproxy.index import store as stored
from kvproxy.index.entry import Entry
from kvproxy.index.entry_redaction import Redactor
from kvproxy.index.errors import ForeignDatabase, SchemaVersionError
from kvproxy.index.failure_log import FailureLog
from kvproxy.index.store_location import is_url
from kvproxy.journal.cache_history import (
    Change,
    ComparisonEnded,
    Event,
    KeepWarmEnded,
    ResponseRemoved,
    ResponseStored,
)
from kvproxy.journal.databases.database import InvalidQuery, JournalDatabase, JournalFailed
from kvproxy.journal.databases.sqlite import open_or_replace
from kvproxy.journal.reader import JournalReader
from kvproxy.journal.record import Record
from kvproxy.journal.record_writer import RecordWriter
from kvproxy.settings.journal import JournalSettings, PriceSettings

_INTERVAL = 0.5  # Seconds.
_BATCH = 256
_SHARED_BATCH = 64  # A transaction in PostgreSQL blocks other proxies.
_PAUSE = 0.005  # Seconds between two transactions, in which the event loop can take the GIL.
_PRUNE_INTERVAL = 10.0
_FAILURE = "the journal %s failed (%s); until it can be written, no records are kept"
_BUFFERING = "the journal %s failed (%s); until it can be written, records wait in memory"
_log = logging.getLogger("kvproxy")
T = TypeVar("T")
MAX_EXCHANGES = 20_000
MAX_CHANGES = 100_000
"""Maximum queued changes of the response store, which wait while the database fails."""
_MAX_IDLE_READERS = 4
_LONG_QUEUE = 4_000  # Exchanges after which a miss waits.
_VERY_LONG_QUEUE = 12_000  # Exchanges after which a hit waits, too: its record takes a tenth of the time.
_MAX_WAIT = 1.0  # Seconds that a request waits for a very long queue.
_STALLED_SECONDS = 2.0  # Time without a written batch after which no request waits for the queue.
_MAX_QUEUED_BYTES = 64 * 2**20


class _JournalEventQueue:
    """The events that wait to be written; `taken` is the time on the clock `time.monotonic` when the last batch left it."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._exchanges = 0
        self._bytes = 0
        self.taken = time.monotonic()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def exchanges(self) -> int:
        return self._exchanges

    def put(self, exchange: Exchange) -> bool:
        size = _body_bytes(exchange)
        with self._lock:
            if self._exchanges >= MAX_EXCHANGES or self._bytes + size > _MAX_QUEUED_BYTES:
                return False
            self._events.append(exchange)
            self._exchanges += 1
            self._bytes += size
        return True

    def put_changes(self, changes: Iterable[Change]) -> None:
        # Even if the queue is full. Without a change, a miss is explained less exactly.
        with self._lock:
            for change in changes:
                if len(self._events) - self._exchanges < MAX_CHANGES:
                    self._events.append(change)

    def take(self, limit: int) -> list[Event]:
        self.taken = time.monotonic()
        with self._lock:
            events = [self._events.popleft() for _ in range(min(limit, len(self._events)))]
            exchanges = [event for event in events if isinstance(event, Exchange)]
            self._exchanges -= len(exchanges)
            self._bytes -= sum(map(_body_bytes, exchanges))
        return events


def _is_record(event: Event) -> bool:
    return isinstance(event, Exchange)


def _has_record(events: Iterable[Event]) -> bool:
    return any(map(_is_record, events))


def _body_bytes(exchange: Exchange) -> int:
    return 0 if exchange.request is None else len(exchange.request.raw)


class Journal:
    """Receives finished requests and changes of the response store. This base class stores nothing.

    Attributes:
        name: path, or URL without the password; None if the journal is disabled.
        lost: number of records that could not be written.
        failure: the error of the last failed write; None again after the next record is written.
    """

    name: str | None = None
    lost = 0
    failure: str | None = None

    def add(self, exchange: Exchange) -> None: ...

    @property
    def is_behind(self) -> bool:
        """Whether a new miss should wait: many records wait to be written, and a proxy at full load must not lose records."""
        return False

    async def wait_for_space(self) -> None:
        """Wait at most a second while so many records wait to be written that each new request should wait."""

    def record_stored(self, entry: Entry) -> None: ...

    def record_keep_warm(self, request_id: str, text: str) -> None:
        """Record what became of the keep-warm requests after a request."""

    def record_comparison(self, request_id: str, verdict: str) -> None:
        """Record the verdict on a request's stored response, see `ComparisonEnded`."""

    def read(self, work: Callable[[JournalReader], T], default: T | None = None) -> T:
        """Return the result of `work`, or `default` if the journal is disabled.

        Raises NotFound if it is disabled and there is no default, KvproxyError if it cannot be read.
        """
        if default is not None:
            return default
        raise NotFound("no journal is kept here: set journal.enabled = true to see what became of requests")

    def use_prices(self, prices: Mapping[str, PriceSettings]) -> None:
        """Use changed prices by model for further records."""

    def reuse_curves(self) -> dict[str, LiveHitCurve]:
        """Return the estimated prefix reuse by pool size, for each upstream's URL; the embedded engine's key is empty."""
        return {}

    def close(self) -> None: ...


class StoredJournal(Journal):
    """A journal in a database. Thread-safe.

    `proxy` is the name of this proxy; None for a file, which one proxy writes. While a database of several proxies fails,
    records stay in memory, as many as the queue holds. Records that a file cannot take are lost.
    """

    def __init__(
        self,
        database: JournalDatabase,
        where: str | Path,
        settings: JournalSettings,
        clock: Callable[[], float],
        redact: Redactor | None,
        proxy: str | None = None,
    ) -> None:
        is_shared = proxy is not None
        self.name = database.name
        self._where = where
        self._database = database
        self._writer = RecordWriter(database, settings, clock, redact, proxy)
        self._clock = clock
        self._is_shared = is_shared
        self._batch_size = _SHARED_BATCH if is_shared else _BATCH
        self._failures = FailureLog()
        self._failed_record = False
        self._lost_before = 0
        self._queue = _JournalEventQueue()
        self._idle_readers: deque[JournalReader] = deque()
        self._batch: list[Event] = []
        self._wake = threading.Event()
        self._writing = threading.Lock()
        self._closing = False
        self._pruned = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def add(self, exchange: Exchange) -> None:
        # Bills count unread requests of clients, too.
        is_recorded = exchange.api is not None or exchange.unread_model or _is_refused_by_limit(exchange)
        if is_recorded and not self._queue.put(exchange):
            self.lost += 1

    @property
    def is_behind(self) -> bool:
        return self._has_queued(_LONG_QUEUE)

    def _has_queued(self, exchanges: int) -> bool:
        """Whether more exchanges are queued than given, and are being written."""
        if self._queue.exchanges <= exchanges or self._failures.is_failing:
            return False
        return time.monotonic() - self._queue.taken < _STALLED_SECONDS

    async def wait_for_space(self) -> None:
        end = time.monotonic() + _MAX_WAIT
        # An event would come from another thread.
        while self._has_queued(_VERY_LONG_QUEUE) and time.monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def record_stored(self, entry: Entry) -> None:
        self._queue.put_changes([ResponseStored(entry.key, entry.id, entry.expires, self._clock(), entry.request_id)])

    def record_keep_warm(self, request_id: str, text: str) -> None:
        self._queue.put_changes([KeepWarmEnded(request_id, text)])

    def record_comparison(self, request_id: str, verdict: str) -> None:
        self._queue.put_changes([ComparisonEnded(request_id, verdict)])

    def record_removed(self, entries: Iterable[ResponseRemoved]) -> None:
        self._queue.put_changes(entries)

    def reader(self) -> JournalReader:
        return JournalReader(self._where)

    def latest(self, limit: int) -> list[Record]:
        """Write all queued events. Return the last records, newest first."""
        self.flush()
        return self.read(lambda reader: reader.latest(limit))

    def read(self, work: Callable[[JournalReader], T], default: T | None = None) -> T:
        try:
            reader = self._idle_readers.pop()
        except IndexError:
            reader = self.reader()
        try:
            return work(reader)
        finally:
            # A connection to PostgreSQL takes longer than most queries. A connection to SQLite belongs to a thread.
            if self._is_shared and not self._closing and len(self._idle_readers) < _MAX_IDLE_READERS:
                self._idle_readers.append(reader)
            else:
                reader.close()

    def use_prices(self, prices: Mapping[str, PriceSettings]) -> None:
        self._writer.use_prices(prices)

    def reuse_curves(self) -> dict[str, LiveHitCurve]:
        return dict(self._writer.reuse_curves)

    def flush(self, pause: float = 0.0) -> None:
        """Write the queued events in transactions, with `pause` seconds between them."""
        with self._writing:
            left = len(self._queue)
            while left > 0 or self._batch:
                if not self._batch:
                    self._batch = self._queue.take(min(left, self._batch_size))
                    left -= max(1, len(self._batch))
                if not self._write(self._batch):
                    return
                self._batch = []
                self._wake.wait(pause)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(_INTERVAL)
            self.flush(_PAUSE)
            if time.monotonic() - self._pruned > _PRUNE_INTERVAL:
                self._prune()
        self.flush()

    def _write(self, events: Sequence[Event]) -> bool:
        try:
            self._writer.write(events)
            # A full disk may allow small changes, but no records.
            if self._failed_record and not _has_record(events):
                return True
            self._failed_record, self.failure = False, None
            message = "the journal %s can be written again; %d records were lost"
            if self._failures.log_recovery(message, self.name, self.lost - self._lost_before):
                self._lost_before = self.lost
        except Exception as error:
            is_rejected = self._is_shared and isinstance(error, InvalidQuery)
            if is_rejected or not isinstance(error, JournalFailed):
                self._write_one_by_one(events)
                return True
            # The proxy keeps serving, for example with a full disk.
            self._log_failure(error)
            self._failed_record |= _has_record(events)
            if self._is_shared:
                return False
            self._count_lost(events)
        return True

    def _write_one_by_one(self, events: Sequence[Event]) -> None:
        for event in events:
            try:
                self._writer.write([event])
            except Exception as error:
                lost = self._count_lost([event])
                _log.error("the journal lost %d records: %s", lost, error or type(error).__name__)

    def _count_lost(self, events: Sequence[Event]) -> int:
        lost = sum(map(_is_record, events))
        self.lost += lost
        return lost

    def _log_failure(self, error: JournalFailed) -> None:
        self.failure = str(error)
        self._failures.log_failure(_BUFFERING if self._is_shared else _FAILURE, self.name, error)

    def _prune(self) -> None:
        self._pruned = time.monotonic()
        try:
            with self._writing:
                while not self._batch and self._writer.prune() and not self._closing:
                    pass
        except JournalFailed as error:
            self._log_failure(error)
        except Exception as error:
            _log.error("the journal could not be pruned, and is tried again: %s", error)

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join()
        if lost := self._count_lost([*self._batch, *self._queue.take(len(self._queue))]):
            _log.error("the journal %s lost %d records: it could not be written at the end", self.name, lost)
        self._database.close()
        for reader in self._idle_readers:
            reader.close()


def open_stored_journal(
    location: str | Path,
    settings: JournalSettings,
    clock: Callable[[], float] = time.time,
    redact: Redactor | None = None,
    proxy: str = "",
) -> StoredJournal:
    """Open a journal in a file, or at a URL of PostgreSQL, where several proxies write it. Raises SettingsError."""
    if isinstance(location, str) and is_url(location):
        return StoredJournal(_open_postgres(location), location, settings, clock, redact, proxy)
    return StoredJournal(_open_file(Path(location), clock), location, settings, clock, redact)


def _open_file(path: Path, clock: Callable[[], float]) -> JournalDatabase:
    advice = "move it away, or set journal.enabled = false"
    try:
        return open_or_replace(path, clock)
    except ForeignDatabase as error:
        raise StorageFailed(f"{error}, or set journal.enabled = false") from None
    except SchemaVersionError as error:
        cause = f"another version of kvproxy created the journal {path} (schema version {error.version})"
        raise StorageFailed(f"{cause}: {advice}") from None
    except (sqlite3.Error, OSError) as error:
        raise StorageFailed(f"cannot open the journal {path}: {error}; {advice}") from None


def _open_postgres(url: str) -> JournalDatabase:
    # Only this journal requires the driver.
    from kvproxy.journal.databases.postgres import PostgresJournalDatabase

    database = PostgresJournalDatabase(url, writable=True)
    try:
        database.connect()
    except JournalFailed as error:
        raise StorageFailed(
            f'cannot open the journal in {database.name} ({error}): start PostgreSQL, or set journal.store = "file"'
        ) from None
    return database


def open_journal(
    location: str,
    settings: JournalSettings,
    store: stored.Store,
    clock: Callable[[], float] = time.time,
    redact: Redactor | None = None,
    proxy: str = "",
) -> Journal:
    """Open the journal of a proxy, and record removals from the store in it. Raises SettingsError.

    `location` is a path or a URL of PostgreSQL, see `Settings.journal_location`.
    """
    if not settings.enabled:
        return Journal()
    journal = open_stored_journal(location, settings, clock, redact, proxy)

    def removed(entries: Sequence[stored.RemovedEntry]) -> None:
        now = clock()
        journal.record_removed(
            ResponseRemoved(entry.key, entry.reason, now) for entry in entries if entry.reason not in (None, "replaced")
        )

    store.removal_listeners.append(removed)
    return journal


def _is_refused_by_limit(exchange: Exchange) -> bool:
    return exchange.client is not None and exchange.layer == "refused" and exchange.reached_limit is not None
