"""Responses that have no body by their status: no length or byte of one may be taken for the next response."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from kvproxy.settings import load_settings
from tests.http.test_request_framing import HOST, connected, responses
from tests.servers import run_connections, run_proxy

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@dataclass
class Double:
    """An upstream that answers /v1/odd with given bytes, and any other path with `ok`."""

    odd: bytes = OK

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                writer.write(self.odd if b" /v1/odd " in head else OK)


@pytest.mark.parametrize(
    ("head", "length"),
    [
        (b"304 Not Modified\r\ncontent-length: 5\r\netag: a", True),
        (b"304 Not Modified\r\netag: a", False),
        (b"204 No Content\r\ncontent-length: 5", False),
        (b"204 No Content\r\ncontent-length: 0", False),
        (b"204 No Content", False),
    ],
)
def test_the_connection_serves_the_next_request(
    tmp_path: Path, head: bytes, length: bool, caplog: pytest.LogCaptureFixture
) -> None:
    double = Double(b"HTTP/1.1 " + head + b"\r\n\r\n")
    with run_connections(double.serve) as upstream:
        answer = exchange(tmp_path, upstream)
    first, _, rest = answer.partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 " + head[:3])
    assert (b"content-length" in first) == length
    assert b"transfer-encoding" not in first
    assert rest.startswith(b"HTTP/1.1 200 OK")
    assert rest.endswith(b"\r\n\r\nok")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def exchange(data: Path, upstream: str) -> bytes:
    settings = load_settings(data=data, upstream=upstream, cache={"semantic": False})
    with run_proxy(settings) as (url, _), connected(httpx.URL(url).port or 0) as client:
        client.sendall(b"GET /v1/odd HTTP/1.1\r\n" + HOST + b"\r\nGET /v1/next HTTP/1.1\r\n" + HOST + b"\r\n")
        return responses(client, 0.3)
