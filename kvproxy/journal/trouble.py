"""Whether the journal can be written: said when it no longer can, and when it can again."""

import logging
import time
from pathlib import Path

_REST = 60.0  # Seconds between two lines, where failure and success take turns.
_log = logging.getLogger("kvproxy")


class Trouble:
    """What fails of a journal. On a full disk every write fails: one line in the log says so, not two a second.

    Args:
        path: of the journal.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failing = False
        self._told = False
        self._next = 0.0
        self._lost = 0

    def failed(self, error: Exception, records: int = 0) -> None:
        """A write failed, and so many records are lost with it."""
        self._lost += records
        if not self._failing and time.monotonic() >= self._next:
            self._next = time.monotonic() + _REST
            self._told = True
            _log.error("the journal %s failed (%s); until it can be written, no records are kept", self._path, error)
        self._failing = True

    def worked(self) -> None:
        """A write worked."""
        if self._failing and self._told:
            self._told = False
            _log.warning("the journal %s can be written again; %d records were lost", self._path, self._lost)
            self._lost = 0
        self._failing = False
