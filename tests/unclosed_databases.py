"""Warns of SQLite connections that are not closed, which only Python 3.13 and later do by themselves."""

import sqlite3
import sys
import traceback
import warnings
from typing import Any

import pytest


class _Connection(sqlite3.Connection):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._closed = False
        frames = traceback.StackSummary.extract(traceback.walk_stack(None), limit=12, lookup_lines=False)
        places = [f"{frame.filename}:{frame.lineno}" for frame in frames if frame.filename != __file__]
        self._opened_at = " < ".join(places)

    def close(self) -> None:
        super().close()
        self._closed = True

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            # An error in a finalizer fails the test that runs then.
            warnings.warn(f"unclosed database, opened at {self._opened_at}", ResourceWarning, stacklevel=1)


def warn_of_unclosed_databases(patch: pytest.MonkeyPatch) -> None:
    """Make later connections of this process warn if they are freed while they are open."""
    if sys.version_info >= (3, 13):
        return
    connect = sqlite3.connect

    def reporting(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **{"factory": _Connection, **named})
        return connection

    patch.setattr(sqlite3, "connect", reporting)
