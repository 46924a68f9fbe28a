"""Splits, parses, and encodes server-sent events."""

import re
from typing import NamedTuple

from kvproxy.apis.json import JsonObject, dumps

DONE = b"[DONE]"
# Two line ends of any kind.
_BOUNDARY = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Linear in the length of the text, also for long runs of spaces.
_WORD = re.compile(r"\S+\s*|\s+")


class Event(NamedTuple):
    data: bytes
    name: bytes = b""


def encode_event(data: JsonObject | bytes, name: str | None = None) -> bytes:
    written = data if isinstance(data, bytes) else dumps(data)
    return (b"" if name is None else b"event: " + name.encode() + b"\n") + b"data: " + written + b"\n\n"


def split_words(text: str) -> list[str]:
    """Split a text into words with their trailing white space, to stream them as separate events."""
    return _WORD.findall(text)


class EventSplitter:
    """Splits a stream of bytes into events, without changing a byte."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def __len__(self) -> int:
        return len(self._rest)

    def push(self, chunk: bytes) -> list[bytes]:
        """Return the events that a chunk completes, with their line ends."""
        # A boundary may span two chunks.
        start, taken = max(0, len(self._rest) - 3), 0
        self._rest += chunk
        events = []
        for boundary in _BOUNDARY.finditer(self._rest, start):
            events.append(bytes(self._rest[taken : boundary.end()]))
            taken = boundary.end()
        del self._rest[:taken]
        return events

    def take_rest(self) -> bytes:
        """Remove and return the bytes after the last event."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest


class EventReader:
    """Parses a stream of bytes into events with data."""

    def __init__(self) -> None:
        self._events = EventSplitter()

    def __len__(self) -> int:
        return len(self._events)

    def push(self, chunk: bytes) -> list[Event]:
        """Return the events that a chunk completes; events without data are omitted."""
        return [event for block in self._events.push(chunk) if (event := parse_event(block)).data]

    def end(self) -> list[Event]:
        """Return the last event if the stream ended without a blank line."""
        event = parse_event(self._events.take_rest())
        return [event] if event.data else []


def parse_event(block: bytes) -> Event:
    data, name = [], b""
    for line in block.removeprefix(_BYTE_ORDER_MARK).splitlines():
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"event:"):
            name = line[6:].strip()
    return Event(b"\n".join(data), name)
