"""A failed request is freed at its end, and not only when Python's garbage collector looks for cycles."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import dumps
from kvproxy.backends.protocol import RelayedResponse
from kvproxy.clients.client_keys import add_client
from kvproxy.errors import HeadersTooLarge
from kvproxy.exchange import Exchange
from kvproxy.flow.backend_response import BackendResponse
from kvproxy.flow.quota_charges import UnparsedRequestCharge
from kvproxy.flow.single_flight import SharedRequest
from kvproxy.settings import load_settings
from tests.plain_upstream import WHOLE
from tests.polling import until
from tests.ports import free_port
from tests.requests import chat
from tests.servers import run_connections, run_front, run_proxy

COUNT = 5
# A kept connection that the upstream is just closing would fail a request whose body cannot be sent again.
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
WHOLE_ANSWER = HEAD + b"content-length: %d\r\n\r\n" % len(dumps(WHOLE)) + dumps(WHOLE)
ANSWERS = {
    "broken off": HEAD + b"content-length: 5000\r\n\r\n{",
    "broken chunk": HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\ndata",
    "no response": b"",
    "garbage": b"hello\r\n\r\n",
}


@pytest.fixture(params=[*ANSWERS, "refused"])
def upstream(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "refused":
        yield f"http://127.0.0.1:{free_port()}"
        return
    with run_raw_upstream(lambda: ANSWERS[request.param]) as url:
        yield url


def run_raw_upstream(answer: Callable[[], bytes]) -> contextlib.AbstractContextManager[str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), b":0")
        await reader.readexactly(int(length.partition(b":")[2]))
        if b"transfer-encoding: chunked" in head.lower():
            # A connection that closes before its request ends is reset, which may discard the response.
            await reader.readuntil(b"0\r\n\r\n")
        writer.write(answer())
        writer.close()

    return run_connections(handle)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/other"])
def test_a_request_whose_upstream_fails_is_freed(
    upstream: str, path: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The fixture keeps the records, among them those of the access log.
    caplog.set_level(logging.INFO, "kvproxy")
    with run_front(tmp_path, upstream) as (url, _), httpx.Client() as client:

        def send(text: str) -> None:
            with contextlib.suppress(httpx.RemoteProtocolError):
                assert client.post(url + path, json=chat(text)).status_code == 502

        assert_freed(send, ApiRequest, Exchange)


@pytest.mark.parametrize("period", ["stale_if_error", "stale_while_revalidate"])
def test_a_request_with_a_stale_response_is_freed(period: str, tmp_path: Path) -> None:
    answers = [WHOLE_ANSWER]
    cache, routing = {"semantic": False, period: 600}, {"eject_after": 10_000}
    with run_raw_upstream(lambda: answers[0]) as upstream:
        settings = load_settings(data=tmp_path, upstream=upstream, cache=cache, routing=routing)
        with run_proxy(settings) as (url, _), httpx.Client(base_url=url) as client:

            def send(text: str) -> None:
                response = client.post("/v1/chat/completions", json=chat(text), headers={"cache-control": "confirm"})
                assert response.status_code == 200
                assert answers[0] or period.replace("_", "-") in response.headers["cache-status"]

            for text in ("first", *map(str, range(COUNT))):
                send(text)
            client.delete("/admin/cache", params={"all": "true", "soft": "true"})
            answers[0] = b""
            assert_freed(send, ApiRequest, Exchange, SharedRequest)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/rerank"])
@pytest.mark.parametrize("tokens_per_minute", [1, 10_000])
def test_a_request_of_a_client_with_a_quota_is_freed(path: str, tokens_per_minute: int, tmp_path: Path) -> None:
    with run_raw_upstream(lambda: WHOLE_ANSWER) as upstream:
        settings = load_settings(data=tmp_path, upstream=upstream, cache={"semantic": False})
        key = add_client(settings, "client", tokens_per_minute=tokens_per_minute)
        headers = {"authorization": f"Bearer {key}"}
        with run_proxy(settings) as (url, _), httpx.Client(base_url=url, headers=headers) as client:

            def send(text: str) -> None:
                response = client.post(path, content=iter([dumps(chat(text * 20))]))
                assert response.status_code == (413 if tokens_per_minute == 1 else 200)

            assert_freed(send, ApiRequest, Exchange, RelayedResponse, BackendResponse, UnparsedRequestCharge)


def test_a_refused_head_is_freed(tmp_path: Path) -> None:
    with run_front(tmp_path, "http://127.0.0.1:1") as (url, _):

        def send(text: str) -> None:
            assert httpx.get(url, headers={"x-text": text * 100_000}).status_code == 431

        assert_freed(send, HeadersTooLarge)


def assert_freed(send: Callable[[str], None], *kinds: type[Any]) -> None:
    with counted_instances(*kinds) as (made, alive):
        send("first")
        assert made
        gc.collect()
        gc.disable()
        try:
            for number in range(COUNT):
                send(str(number))
            # The server may still hold the last request.
            until(lambda: len(alive) <= len(kinds))
        finally:
            gc.enable()


@contextlib.contextmanager
def counted_instances(*kinds: type[Any]) -> Iterator[tuple[set[type[Any]], set[int]]]:
    """The kinds of the instances that are made in the block, and the ids of those that still exist.

    `gc.get_objects()` would return them, too, but its references break tuples that another thread is just building.
    """
    made: set[type[Any]] = set()
    alive: set[int] = set()

    def counted(kind: type[Any]) -> Callable[..., None]:
        construct = kind.__init__

        def __init__(self: object, *arguments: Any, **named: Any) -> None:
            made.add(kind)
            alive.add(id(self))
            construct(self, *arguments, **named)

        return __init__

    with contextlib.ExitStack() as patches:
        for kind in kinds:
            patches.enter_context(mock.patch.object(kind, "__init__", counted(kind)))
            patches.enter_context(
                mock.patch.object(kind, "__del__", lambda instance: alive.discard(id(instance)), create=True)
            )
        yield made, alive
