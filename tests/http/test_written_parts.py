"""Head and body of a whole response are written together; the head of a stream does not wait for its first chunk."""

import asyncio
from collections.abc import Iterable
from typing import cast

from kvproxy.http.client_connection import _ResponseTransport


class RecordingTransport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.written.append(b"".join(parts))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def transports() -> tuple[_ResponseTransport, RecordingTransport]:
    recorded = RecordingTransport()
    return _ResponseTransport(cast("asyncio.Transport", recorded)), recorded


async def test_head_and_body_of_one_turn_are_one_write() -> None:
    transport, recorded = transports()
    transport.hold_next_write()
    transport.write(b"head ")
    transport.write(b"body")
    transport.write(b" more")
    await asyncio.sleep(0)
    assert recorded.written == [b"head body", b" more"]


async def test_a_head_without_a_body_is_written_in_the_next_turn() -> None:
    transport, recorded = transports()
    transport.hold_next_write()
    transport.write(b"head ")
    assert recorded.written == []
    await asyncio.sleep(0)
    transport.write(b"chunk")
    assert recorded.written == [b"head ", b"chunk"]


async def test_heads_without_bodies_keep_their_order() -> None:
    transport, recorded = transports()
    for head in (b"first", b"second"):
        transport.hold_next_write()
        transport.write(head)
    transport.close()
    assert recorded.written == [b"first", b"second"]
    assert recorded.closed
