"""A server whose responses never end: a flood, a byte now and then, or silence."""

import asyncio
import contextlib
from collections.abc import Iterator

from tests.servers import run_connections

FLOOD, DRIP, SILENCE = "flood", "drip", "silence"


@contextlib.contextmanager
def run_endless(body: str, status: str = "200 OK") -> Iterator[tuple[str, list[str]]]:
    """Yield the URL, and the list of the requested paths."""
    asked: list[str] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            asked.append(head.split()[1].decode())
            location = b"location: /elsewhere\r\nretry-after: 4\r\n"
            writer.write(b"HTTP/1.1 %s\r\ncontent-type: application/json\r\n%s\r\n" % (status.encode(), location))
            while True:
                await writer.drain()
                if body == FLOOD:
                    writer.write(b"x" * 2**18)
                    await asyncio.sleep(0)
                    continue
                if body == DRIP:
                    writer.write(b" ")
                await asyncio.sleep(0.05)

    with run_connections(handle) as url:
        yield url, asked
