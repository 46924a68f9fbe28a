"""Warns of SQLite connections and sockets that are freed while they are open, and names the places that opened them."""

import socket
import sqlite3
import sys
import warnings
from types import CodeType
from typing import Any

import pytest

_FRAMES = 12
_Places = list[tuple[CodeType, int]]


def _places() -> _Places:
    frame = sys._getframe(2)
    found: _Places = []
    while frame is not None and len(found) < _FRAMES:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _text(places: _Places) -> str:
    return "opened at " + " < ".join(f"{code.co_filename}:{line}" for code, line in places)


class _Connection(sqlite3.Connection):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._closed = False
        self._places = _places()

    def close(self) -> None:
        super().close()
        self._closed = True

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            # An error in a finalizer fails the test that runs then.
            warnings.warn(f"unclosed database, {_text(self._places)}", ResourceWarning, stacklevel=1)


def warn_of_unclosed_databases(patch: pytest.MonkeyPatch) -> None:
    """Make later connections of this process warn if they are freed while they are open, as Python 3.13 does by itself."""
    if sys.version_info >= (3, 13):
        return
    connect = sqlite3.connect

    def reporting(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **{"factory": _Connection, **named})
        return connection

    patch.setattr(sqlite3, "connect", reporting)


def name_openers_of_sockets(patch: pytest.MonkeyPatch) -> None:
    """Add the places that opened a socket to Python's own warning, which prints the socket."""
    # By identity, because weak references are cleared before the warning. A new socket replaces a freed one.
    places: dict[int, _Places] = {}
    original, description = socket.socket.__init__, socket.socket.__repr__

    def initialise(self: socket.socket, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        places[id(self)] = _places()

    def describe(self: socket.socket) -> str:
        text = description(self)
        return f"{text}, {_text(places[id(self)])}" if id(self) in places else text

    patch.setattr(socket.socket, "__init__", initialise)
    patch.setattr(socket.socket, "__repr__", describe)
