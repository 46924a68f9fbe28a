"""Looks at a proxy again and again, in a thread of its own: the screen never waits for it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kvproxy.commands.client import ProxyClient
from kvproxy.commands.watch.rows import Row, read_row
from kvproxy.commands.watch.sample import Sample, take
from kvproxy.errors import KvproxyError, NotFound

MOST_RECORDS = 500
PATIENCE = 5.0
"""Seconds that one answer of the proxy may take."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is known at one moment.

    Attributes:
        time: when, in seconds since the epoch.
        sample: of the proxy; None where it did not answer, and `problem` says why.
        upstreams: rows of `/admin/upstreams`; none for the embedded engine.
        rows: the last requests, the newest first; None where they were not read yet.
        problem: why there is no sample.
        no_journal: why there are no rows.
    """

    time: float
    sample: Sample | None
    upstreams: tuple[dict[str, Any], ...] = ()
    rows: tuple[Row, ...] | None = None
    problem: str | None = None
    no_journal: str | None = None


class Looker:
    """Looks at a proxy at regular times until it is stopped.

    Args:
        url, token: of the proxy; see `options.py`.
        interval: seconds between two looks.
        tell: takes each look; called in the looker's thread.
    """

    def __init__(self, url: str, token: str | None, interval: float, tell: Callable[[Look], None]) -> None:
        self._url, self._interval, self._tell = url, interval, tell
        self._client = ProxyClient(url, token, patience=PATIENCE)
        self._rows: tuple[Row, ...] = ()
        self._stopped = threading.Event()
        # A proxy that does not answer must not hold up the end of the command.
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, without waiting for a look under way."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._tell(self._look())
            self._stopped.wait(self._interval)

    def _look(self) -> Look:
        try:
            look = Look(time.time(), take(self._client), self._upstreams())
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

    def _upstreams(self) -> tuple[dict[str, Any], ...]:
        try:
            return tuple(self._client.get("/admin/upstreams"))
        except NotFound:
            # The embedded engine has none.
            return ()

    def _records(self) -> tuple[Row, ...]:
        """The last requests; only those are fetched that came since the last look."""
        last = self._rows[0].record.number if self._rows else None
        new = [read_row(row) for row in self._client.get("/admin/log", limit=MOST_RECORDS, after=last)]
        self._rows = (*new, *self._rows)[:MOST_RECORDS]
        return self._rows
