"""Responses that have no body by their status: no length or byte of one may be taken for the next response."""

import asyncio
import contextlib
import logging
import re
from pathlib import Path

import httpx
import pytest

from tests.http.test_request_heads import HOST, LAST, connected, until_closed
from tests.servers import run_connections, run_front

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
HEADS = [
    b"304 Not Modified\r\ncontent-length: 5\r\netag: a",
    b"304 Not Modified\r\netag: a",
    b"204 No Content\r\ncontent-length: 5",
    b"204 No Content\r\ncontent-length: 0",
    b"204 No Content",
]


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer /v1/odd/NUMBER with one of the heads, and any other path with `ok`."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            odd = re.search(rb" /v1/odd/(\d) ", head)
            writer.write(b"HTTP/1.1 " + HEADS[int(odd[1])] + b"\r\n\r\n" if odd else OK)


def test_the_connection_serves_the_next_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with run_connections(serve) as upstream, run_front(tmp_path, upstream) as (url, _):
        for number, head in enumerate(HEADS):
            with connected(httpx.URL(url).port or 0) as client:
                client.sendall(b"GET /v1/odd/%d HTTP/1.1\r\n" % number + HOST + b"\r\n")
                client.sendall(LAST)
                first, _, rest = until_closed(client).partition(b"\r\n\r\n")
            assert first.startswith(b"HTTP/1.1 " + head[:3])
            # A 304 may tell the length of the response that it stands for.
            assert (b"content-length" in first) == (number == 0)
            assert b"transfer-encoding" not in first
            assert rest.startswith(b"HTTP/1.1 200 OK")
            assert rest.endswith(b"\r\n\r\nok")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
