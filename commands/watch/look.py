"""Looks at a proxy again and again, in a thread of its own: the screen never waits for it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvproxy.commands.client import ProxyClient
from kvproxy.commands.watch.parts import Part, Wanted, find
from kvproxy.commands.watch.rows import Row, read_row
from kvproxy.commands.watch.sample import Sample, take
from kvproxy.errors import KvproxyError, ProxyUnreachable

MOST_RECORDS = 500
_REST = 10.0
"""Times as long as it took to find a part, until it is asked for again."""
PATIENCE = 5.0
"""Seconds that one answer of the proxy may take."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is known at one moment.

    Attributes:
        time: when, in seconds since the epoch.
        sample: of the proxy; None where it did not answer, and `problem` says why.
        rows: the last requests, the newest first; None where they were not read yet.
        problem: why there is no sample.
        no_journal: why there are no rows.
    """

    time: float
    sample: Sample | None
    rows: tuple[Row, ...] | None = None
    problem: str | None = None
    no_journal: str | None = None


class Looker:
    """Looks at a proxy at regular times until it is stopped.

    Args:
        url, token: of the proxy; see `options.py`.
        interval: seconds between two looks.
        tell: takes each look, and each part that was wanted; called in the looker's thread.
        wanted: what to look at first.
    """

    def __init__(
        self, url: str, token: str | None, interval: float, tell: Callable[[Look | Part], None], wanted: Wanted
    ) -> None:
        self._url, self._interval, self._tell = url, interval, tell
        self._client = ProxyClient(url, token, patience=PATIENCE)
        self._rows: tuple[Row, ...] = ()
        self._wanted = wanted
        self._stopped = threading.Event()
        self._called = threading.Event()
        # A proxy that does not answer must not hold up the end of the command.
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, without waiting for a look under way."""
        self._stopped.set()
        self._called.set()

    def want(self, wanted: Wanted) -> None:
        """Look at something else, at once and from now on."""
        self._wanted = wanted
        self._called.set()

    def _run(self) -> None:
        due = again = time.monotonic()
        seen: Wanted | None = None
        while not self._stopped.is_set():
            # Rates are told between two looks: one that came too soon would be wild.
            if time.monotonic() >= due:
                due = time.monotonic() + self._interval
                self._tell(self._look())
            wanted, began = self._wanted, time.monotonic()
            if wanted != seen or began >= again:
                part = self._part(wanted)
                # What takes the proxy long, as the sums of a large store do, is asked for less often.
                now = time.monotonic()
                seen, again = wanted, now + _REST * (now - began)
                if part is not None:
                    self._tell(part)
            self._called.wait(max(0.0, due - time.monotonic()))
            self._called.clear()

    def _look(self) -> Look:
        try:
            look = Look(time.time(), take(self._client))
        except KvproxyError as error:
            # Its journal may be another one after a restart.
            self._rows = ()
            return Look(time.time(), None, problem=error.message)
        except ValueError as error:
            return Look(time.time(), None, problem=f"what answers at {self._url} is no kvproxy: {error}")
        try:
            return replace(look, rows=self._records())
        except KvproxyError as error:
            return replace(look, no_journal=error.message)

    def _part(self, wanted: Wanted) -> Part | None:
        """What was wanted; None where no proxy answers, which every look tells."""
        try:
            return Part(wanted, find(self._client, wanted))
        except ProxyUnreachable:
            return None
        except KvproxyError as error:
            return Part(wanted, None, error.message)

    def _records(self) -> tuple[Row, ...]:
        """The last requests; only those are fetched that came since the last look."""
        last = self._rows[0].record.number if self._rows else None
        new = [read_row(row) for row in self._client.get("/admin/log", limit=MOST_RECORDS, after=last)]
        self._rows = (*new, *self._rows)[:MOST_RECORDS]
        return self._rows
