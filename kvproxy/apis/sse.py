"""Server-sent events: how they are written, and how they are read however they were cut on the way."""

import re
from typing import NamedTuple

import orjson

from kvproxy.apis.json import JsonObject

DONE = b"[DONE]"
_BOUNDARY = re.compile(rb"\r\n\r\n|\n\n|\r\r")
# Each alternative begins where the one before ended, so the time is linear in the text, blanks included.
_PIECE = re.compile(r"\S+\s*|\s+")


class Event(NamedTuple):
    """One event: its data, and its name where it has one."""

    data: bytes
    name: bytes = b""


def event(data: JsonObject | bytes, name: str | None = None) -> bytes:
    """One event as bytes, with JSON or given data."""
    written = data if isinstance(data, bytes) else orjson.dumps(data)
    return (b"" if name is None else b"event: " + name.encode() + b"\n") + b"data: " + written + b"\n\n"


def pieces(text: str) -> list[str]:
    """A text in words, as a stream shows it; nothing for an empty text."""
    return _PIECE.findall(text)


class EventReader:
    """Splits bytes into events, however they were cut on the way."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def __len__(self) -> int:
        """Bytes of an event that is not complete yet."""
        return len(self._rest)

    def push(self, chunk: bytes) -> list[Event]:
        """The events that are complete with this chunk; those without data are left out."""
        # A boundary may have begun in the chunk before; anything further back was searched already.
        start, taken = max(0, len(self._rest) - 3), 0
        self._rest += chunk
        found = []
        while (boundary := _boundary(self._rest, start)) is not None:
            read = _read(bytes(self._rest[taken : boundary[0]]))
            start = taken = boundary[1]
            if read.data:
                found.append(read)
        del self._rest[:taken]
        return found


def _boundary(text: bytearray, start: int) -> tuple[int, int] | None:
    """Where the next empty line begins and ends."""
    at = text.find(b"\n\n", start)
    # Searching for bytes is many times as fast as for a pattern, and hardly any server ends its lines with \r.
    if text.find(b"\r", start, len(text) if at < 0 else at) < 0:
        return None if at < 0 else (at, at + 2)
    found = _BOUNDARY.search(text, start)
    return None if found is None else found.span()


def _read(block: bytes) -> Event:
    data, name = [], b""
    for line in block.splitlines():
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"event:"):
            name = line[6:].strip()
    return Event(b"\n".join(data), name)
