"""Looks at a proxy again and again, in a thread of its own: the screen never waits for it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvproxy.commands.client import ProxyClient
from kvproxy.commands.journal_file import open_journal, questions
from kvproxy.commands.watch.sample import Sample, take
from kvproxy.errors import KvproxyError, NotFound

if TYPE_CHECKING:
    from kvproxy.journal.reader import Reader
    from kvproxy.journal.record import Record

MOST_RECORDS = 500
_PATIENCE = 5.0
"""Seconds that one answer of the proxy may take."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is known at one moment.

    Attributes:
        time: when, in seconds since the epoch.
        sample: of the proxy; None where it did not answer, and `problem` says why.
        upstreams: rows of `/admin/upstreams`; none for the embedded engine.
        records: the last requests, the newest first; None where they were not read yet.
        questions: what they asked, by their entry's id, where it is still stored.
        problem: why there is no sample.
        no_journal: why there are no records.
    """

    time: float
    sample: Sample | None
    upstreams: tuple[dict[str, Any], ...] = ()
    records: "tuple[Record, ...] | None" = None
    questions: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    no_journal: str | None = None


class Looker:
    """Looks at a proxy at regular times until it is stopped.

    Args:
        url, token, data: of the proxy; see `options.py`.
        interval: seconds between two looks.
        tell: takes each look; called in the looker's thread.
    """

    def __init__(
        self, url: str, token: str | None, data: Path | None, interval: float, tell: Callable[[Look], None]
    ) -> None:
        self._url, self._token, self._data, self._interval, self._tell = url, token, data, interval, tell
        self._client = ProxyClient(url, token, patience=_PATIENCE)
        self._reader: Reader | None = None
        self._questions: dict[str, str] = {}
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
        looks = 0
        while not self._stopped.is_set():
            look, looks = self._look(), looks + 1
            self._tell(look)
            # The journal takes longer at first, for what reads the store has to be loaded: rates, of two looks, come before it.
            if look.sample is not None and looks > 1:
                self._tell(self._with_records(look))
            self._stopped.wait(self._interval)

    def _look(self) -> Look:
        try:
            return Look(time.time(), take(self._client), self._upstreams())
        except KvproxyError as error:
            return Look(time.time(), None, problem=error.message)
        except ValueError as error:
            return Look(time.time(), None, problem=f"what answers at {self._url} is no kvproxy: {error}")

    def _with_records(self, look: Look) -> Look:
        try:
            return replace(look, records=self._records(), questions=self._questions)
        except KvproxyError as error:
            # Its file may be another one after a restart.
            self._reader = None
            return replace(look, no_journal=error.message)

    def _upstreams(self) -> tuple[dict[str, Any], ...]:
        try:
            return tuple(self._client.get("/admin/upstreams"))
        except NotFound:
            # The embedded engine has none.
            return ()

    def _records(self) -> "tuple[Record, ...]":
        from kvproxy.journal.reader import Query

        if self._reader is None:
            self._reader = open_journal(self._url, self._token, self._data)
        found = tuple(self._reader.records(Query(limit=MOST_RECORDS)))
        new = {record.entry for record in found if record.entry and record.entry not in self._questions}
        if new:
            told = questions(self._reader.path.parent, new)
            kept = {record.entry for record in found}
            self._questions = {id: text for id, text in self._questions.items() if id in kept} | {
                id: told.get(id, "") for id in new if id is not None
            }
        return found
