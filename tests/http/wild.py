"""An upstream that does anything to a connection, and a client that records the received bytes exactly."""

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from tests.servers import run_connections

_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True, repr=False)
class Script:
    """The upstream's behaviour after it has read a request.

    Attributes:
        parts: bytes written one after the other.
        pause: seconds between parts.
        end: `close`, `reset`, or `hang`, which waits for the other side to close.
        malformed: the framing is no HTTP.
    """

    parts: tuple[bytes, ...]
    pause: float = 0.0
    end: str = "close"
    malformed: bool = False

    def __repr__(self) -> str:
        return f"Script({len(self.parts)} parts, {b''.join(self.parts)[:400]!r}, pause={self.pause}, end={self.end!r})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


class Wild:
    """Serves scripts by the number that a request carries in its `x-script` header."""

    def __init__(self) -> None:
        self.scripts: dict[int, Script] = {}
        self.open = 0
        self.sent = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            await self._play(self.scripts[int(head.split(b"x-script: ")[1].split(b"\r\n")[0])], reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def _play(self, script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in script.parts:
            writer.write(part)
            await writer.drain()
            self.sent += len(part)
            await asyncio.sleep(script.pause)
        if script.end == "hang":
            await reader.read()
        elif script.end == "reset":
            # A reset overtakes bytes in flight, so wait until they have arrived.
            await asyncio.sleep(0.05)
            raw: socket.socket = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def serve(self) -> contextlib.AbstractContextManager[str]:
        """Run on a thread; yield the URL."""
        return run_connections(self.handle)


@dataclass(slots=True)
class Seen:
    """The part of a response that a client received; status 0 if there was no response.

    Attributes:
        body: without its framing.
        complete: whether the response is complete by its framing.
    """

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    complete: bool = False

    def get(self, name: bytes) -> bytes | None:
        found = [value for header, value in self.headers if header == name]
        return found[-1] if found else None


async def observe(
    url: str, path: str, body: bytes, script: int, patience: float, leave_after: int | None = None
) -> Seen:
    """Send one POST and take everything until the other side closes, patience ends, or enough bytes have come."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Script: {script}\r\nContent-Length: {len(body)}\r\n\r\n"
    raw = bytearray()
    try:
        writer.write(head.encode() + body)
        async with asyncio.timeout(patience):
            while (leave_after is None or len(raw) < leave_after) and (part := await reader.read(65_536)):
                raw += part
        ended = leave_after is None
    except (TimeoutError, ConnectionError):
        ended = False
    finally:
        writer.close()
    return _parse(bytes(raw), ended)


def _parse(raw: bytes, ended: bool) -> Seen:
    head, separator, rest = raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    if not separator or not lines[0].startswith(b"HTTP/1.1 "):
        return Seen()
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines[1:])]
    seen = Seen(int(lines[0].split(b" ")[1]), headers)
    length = seen.get(b"content-length")
    if seen.get(b"transfer-encoding") == b"chunked":
        seen.body, seen.complete = _dechunk(rest)
    elif length is not None:
        seen.body, seen.complete = rest[: int(length)], len(rest) >= int(length)
    else:
        seen.body, seen.complete = rest, ended
    return seen


def _dechunk(rest: bytes) -> tuple[bytes, bool]:
    body = b""
    while True:
        line, separator, after = rest.partition(b"\r\n")
        try:
            size = int(line, 16)
        except ValueError:
            return body, False
        if not separator or size == 0:
            return body, bool(separator) and after.startswith(b"\r\n")
        body += after[:size]
        if len(after) < size + 2:
            return body, False
        rest = after[size + 2 :]
