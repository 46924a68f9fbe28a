"""The journal: takes what becomes of requests, and writes it down in a thread of its own."""

import contextlib
import itertools
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from kvproxy.errors import NotFound, SettingsError
from kvproxy.index.entry import Entry
from kvproxy.index.placed import PlacedFiles
from kvproxy.index.redactor import Redactor
from kvproxy.journal.draft import Draft
from kvproxy.journal.hits import Hits, hit_of
from kvproxy.journal.past import Gone, Kept
from kvproxy.journal.reader import Query, Reader
from kvproxy.journal.record import Record
from kvproxy.journal.savings import Saving, savings
from kvproxy.journal.schema import open_whole
from kvproxy.journal.trouble import Trouble
from kvproxy.journal.waiting import Waiting, What, records_of
from kvproxy.journal.writer import Writer
from kvproxy.settings.journal import JournalSettings

_EVERY = 0.5  # Seconds between two writes; a killed process loses what came since the last.
_AT_ONCE = 20_000
"""What is taken from those that wait, at a time. Of it, one transaction writes as many hits as come,"""
_LONG = 128
"""but no more than so many of what takes longer: at a go it would hold up every answer under way."""
_REST = 0.005  # Seconds between two transactions, for the threads that answer.
_PRUNE_EVERY = 10.0
_log = logging.getLogger("kvproxy")


class Journal(Protocol):
    """Where the flow leaves what became of requests."""

    def add(self, draft: Draft) -> None:
        """Take a request that is over. Costs next to nothing: it is looked at later, elsewhere."""

    def kept(self, entry: Entry) -> None:
        """Take note of an entry that is stored now."""

    def gone(self, entries: Iterable[Gone]) -> None:
        """Take note of entries that are no longer stored."""

    def latest(self, limit: int) -> list[Record]:
        """The last records, the newest first. Reads the file."""

    def saved(self) -> list[Saving]:
        """What was saved until now, by layer. Reads the file."""

    def reader(self) -> Reader:
        """Reads the file; the caller closes it. Raises NotFound where no journal is kept, KvproxyError if it cannot be read."""

    def asked(self, number: int) -> str | None:
        """The question of one of the last records for which a similar question was judged, if it is still at hand."""

    def close(self) -> None:
        """Write what is left."""


class NoJournal:
    """Keeps nothing."""

    def add(self, draft: Draft) -> None:
        """Forget it."""

    def kept(self, entry: Entry) -> None:
        """Forget it."""

    def gone(self, entries: Iterable[Gone]) -> None:
        """Forget them."""

    def latest(self, limit: int) -> list[Record]:
        return []

    def saved(self) -> list[Saving]:
        return []

    def reader(self) -> Reader:
        raise NotFound("no journal is kept here: set journal.enabled = true to see what became of requests")

    def asked(self, number: int) -> str | None:
        return None

    def close(self) -> None:
        """There is nothing to write."""


class FileJournal:
    """A journal in an SQLite file. Safe to use from several threads.

    Args:
        path: the file; it is made if it is missing.
        settings: how much is kept.
        clock: seconds since the epoch.
        redact: takes out of texts what must not be kept.

    Raises:
        SettingsError: the file cannot be used.
    """

    def __init__(
        self,
        path: Path,
        settings: JournalSettings,
        clock: Callable[[], float] = time.time,
        redact: Redactor | None = None,
    ) -> None:
        try:
            self._connection = open_whole(path, clock)
            self._writer = Writer(self._connection, settings, clock, redact)
            self._files = PlacedFiles(path, self._connection)
        except (sqlite3.Error, OSError) as error:
            raise SettingsError(
                f"cannot open the journal {path}: {error}; move it away, or set journal.enabled = false"
            ) from None
        self.path = path
        self._prices = settings.prices
        self._clock = clock
        self.lost = 0
        """Records that could not be written."""
        self._trouble = Trouble(path)
        self._waiting = Waiting()
        self._wake = threading.Event()
        self._writing = threading.Lock()
        self._closing = False
        self._pruned = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    def add(self, draft: Draft) -> None:
        if self._waiting.full:
            self.lost += 1
        elif self._writer.knows(draft.key) and (hit := hit_of(draft)) is not None:
            self._waiting.add_hit(hit)
        else:
            self._waiting.add(draft)

    def kept(self, entry: Entry) -> None:
        self._waiting.add_moved([Kept(entry.key, entry.id, entry.expires, self._clock(), entry.request_id)])

    def gone(self, entries: Iterable[Gone]) -> None:
        self._waiting.add_moved(entries)

    def latest(self, limit: int) -> list[Record]:
        self.flush()
        with contextlib.closing(Reader(self.path)) as reader:
            return reader.records(Query(limit=limit))

    def saved(self) -> list[Saving]:
        with contextlib.closing(Reader(self.path)) as reader:
            return savings(reader, "layer", self._prices)

    def reader(self) -> Reader:
        return Reader(self.path)

    def asked(self, number: int) -> str | None:
        return self._writer.asked.of(number)

    def flush(self, rest: float = 0.0) -> None:
        """Write what has come until now; what comes meanwhile waits, or a busy proxy would have it written one by one.

        Args:
            rest: seconds of rest after each transaction, for the threads that answer.
        """
        with self._writing:
            left = len(self._waiting)
            while left > 0:
                what = self._waiting.take(_AT_ONCE)
                for part in _parts(what):
                    self._write(part)
                    self._wake.wait(rest)
                left -= sum([len(each) if isinstance(each, Hits) else 1 for each in what])

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(_EVERY)
            self.flush(_REST)
            if time.monotonic() - self._pruned > _PRUNE_EVERY:
                self._prune()
        self.flush()

    def _write(self, what: Sequence[What]) -> None:
        try:
            self._look()
            self._writer.write(what)
            self._trouble.worked()
        except sqlite3.Error as error:
            # A full disk: the proxy serves on.
            self._trouble.failed(error, self._lost_of(what))
        except Exception:
            # One of them is of a kind that none of this foresaw; it goes alone.
            for each in itertools.chain.from_iterable(each if isinstance(each, Hits) else (each,) for each in what):
                try:
                    self._writer.write([each])
                except Exception as error:
                    lost = self._lost_of([each])
                    _log.error("the journal lost %d records: %s", lost, error or type(error).__name__)

    def _look(self) -> None:
        """Notice that the file is no longer there: what is written would be gone with the process."""
        if self._files.gone:
            self._files.leave()
            raise sqlite3.OperationalError("it was deleted or replaced: restart to use what is there now")

    def _lost_of(self, what: Sequence[What]) -> int:
        """Count the records among what could not be written."""
        records = sum(map(records_of, what))
        self.lost += records
        return records

    def _prune(self) -> None:
        self._pruned = time.monotonic()
        try:
            with self._writing:
                self._look()
                while self._writer.prune() and not self._closing:
                    pass
        except sqlite3.Error as error:
            self._trouble.failed(error)
        except Exception as error:
            _log.error("the journal could not be made smaller, which is tried again: %s", error)

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join()
        self._connection.close()


def _parts(what: Sequence[What]) -> Iterator[list[What]]:
    """What is written in one transaction each."""
    part, long = list[What](), 0
    for each in what:
        part.append(each)
        long += not isinstance(each, Hits)
        if long >= _LONG:
            yield part
            part, long = [], 0
    if part:
        yield part
