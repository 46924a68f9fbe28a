"""Warns of SQLite connections that are not closed, which only Python 3.13 and later do by themselves."""

import sqlite3
import sys
import warnings
from typing import Any

import pytest


class _Connection(sqlite3.Connection):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._closed = False
        frame = sys._getframe(1)
        while frame.f_back and "site-packages" in frame.f_code.co_filename:
            frame = frame.f_back
        self._opened_at = f"{frame.f_code.co_filename}:{frame.f_lineno}"

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
