"""Server-sent events: writing them, and reading them however they were cut on the way."""

import re
from typing import Any

import orjson

DONE = b"[DONE]"
_BOUNDARY = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_PIECE = re.compile(r"\s*\S+\s*")


def event(data: dict[str, Any] | bytes, name: str | None = None) -> bytes:
    """One event with JSON or given data."""
    written = data if isinstance(data, bytes) else orjson.dumps(data)
    return (b"" if name is None else b"event: " + name.encode() + b"\n") + b"data: " + written + b"\n\n"


def pieces(text: str) -> list[str]:
    """A text in words, as a stream shows it; nothing for no text."""
    return _PIECE.findall(text) or ([text] if text else [])


class EventReader:
    """Splits bytes into events, however they were cut on the way."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def push(self, chunk: bytes) -> list[bytes]:
        """The data of each event that is complete with this chunk."""
        # A boundary may have begun in the chunk before; anything further back was searched already.
        start, taken = max(0, len(self._rest) - 3), 0
        self._rest += chunk
        found = []
        while (boundary := _BOUNDARY.search(self._rest, start)) is not None:
            data = _data(bytes(self._rest[taken : boundary.start()]))
            start = taken = boundary.end()
            if data:
                found.append(data)
        del self._rest[:taken]
        return found

    @property
    def clean(self) -> bool:
        """Whether nothing is left of an unfinished event."""
        return not self._rest.strip()


def _data(block: bytes) -> bytes:
    lines = [line[5:].removeprefix(b" ") for line in block.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)
