"""A failed request is freed at its end, and not only when Python's garbage collector looks for cycles."""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvproxy.apis.api_request import ApiRequest
from kvproxy.errors import HeadersTooLarge
from kvproxy.exchange import Exchange
from tests.polling import until
from tests.ports import free_port
from tests.requests import chat
from tests.servers import run_connections, run_front

COUNT = 5
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
ANSWERS = {
    "broken off": HEAD + b"content-length: 5000\r\n\r\n{",
    "broken chunk": HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\ndata",
    "no response": b"",
    "garbage": b"hello\r\n\r\n",
}


@pytest.fixture(params=[*ANSWERS, "refused"])
def upstream(request: pytest.FixtureRequest) -> Iterator[str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), b":0")
        await reader.readexactly(int(length.partition(b":")[2]))
        writer.write(ANSWERS[request.param])
        writer.close()

    if request.param == "refused":
        yield f"http://127.0.0.1:{free_port()}"
        return
    with run_connections(handle) as url:
        yield url


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/other"])
def test_a_request_whose_upstream_fails_is_freed(upstream: str, path: str, tmp_path: Path) -> None:
    with run_front(tmp_path, upstream) as (url, _), httpx.Client() as client:

        def send(text: str) -> None:
            with contextlib.suppress(httpx.RemoteProtocolError):
                assert client.post(url + path, json=chat(text)).status_code == 502

        assert_freed(send, ApiRequest, Exchange)


def test_a_refused_head_is_freed(tmp_path: Path) -> None:
    with run_front(tmp_path, "http://127.0.0.1:1") as (url, _):

        def send(text: str) -> None:
            assert httpx.get(url, headers={"x-text": text * 100_000}).status_code == 431

        assert_freed(send, HeadersTooLarge)


def assert_freed(send: Callable[[str], None], *kinds: type[Any]) -> None:
    send("first")
    gc.collect()
    gc.disable()
    try:
        for number in range(COUNT):
            send(str(number))
        # The server may still hold the last request.
        until(lambda: sum(isinstance(each, kinds) for each in gc.get_objects()) <= len(kinds), seconds=5)
    finally:
        gc.enable()
