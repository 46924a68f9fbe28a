"""Pipelined requests: bounded, answered in order, and cancelled when their client leaves."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from kvproxy.http.client_connection import MAX_PIPELINED
from tests.http.conftest import PROBES
from tests.http.test_request_heads import HOST, LAST, UPGRADES, connected, post, statuses, until_closed
from tests.polling import until
from tests.servers import run_front, run_upstream

SLOW = post(b"/v1/slow", b"abc")


@dataclass
class Upstream:
    """Answers /v1/slow when the gate is open, streams forever at /v1/endless, and answers any other path immediately."""

    paths: list[str] = field(default_factory=list)
    streams: int = 0
    gate: threading.Event = field(default_factory=threading.Event)

    async def answer(self, request: Request) -> Response:
        await request.body()
        if request.url.path in PROBES:
            return Response()
        self.paths.append(request.url.path)
        if request.url.path == "/v1/slow":
            await asyncio.to_thread(self.gate.wait)
        if request.url.path == "/v1/endless":
            return StreamingResponse(self.endless(), media_type="text/event-stream")
        return Response(b"ok")

    async def endless(self) -> AsyncIterator[bytes]:
        self.streams += 1
        try:
            while True:
                yield b"data: 1\n\n"
                await asyncio.sleep(0.01)
        finally:
            self.streams -= 1


@dataclass
class Stack:
    port: int
    upstream: Upstream


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    upstream = Upstream()
    with run_upstream(upstream.answer) as url:
        data = tmp_path_factory.mktemp("pipelining")
        with run_front(data, url) as (proxy, _):
            yield Stack(httpx.URL(proxy).port or 0, upstream)


@pytest.fixture
def stack(running: Stack) -> Stack:
    running.upstream.paths.clear()
    running.upstream.gate.clear()
    return running


def test_many_offers_of_h2c_in_one_segment_are_answered(stack: Stack) -> None:
    offer = b"GET /v1/offer HTTP/1.1\r\n" + HOST + UPGRADES + b"\r\n"
    with connected(stack.port) as client:
        client.sendall(offer * MAX_PIPELINED + LAST)
        assert statuses(until_closed(client)) == [b"200"] * (MAX_PIPELINED + 1)


@pytest.mark.parametrize("offer", [b"", UPGRADES], ids=["plain", "h2c"])
@pytest.mark.parametrize("pause", [0.0, 0.002], ids=["at once", "in segments"])
def test_pipelined_requests_are_bounded(stack: Stack, offer: bytes, pause: float) -> None:
    """Requests beyond the bound are not read; the connection closes with an error after the responses before it."""
    request = b"GET /v1/many HTTP/1.1\r\n" + HOST + offer + b"\r\n"
    with connected(stack.port) as client:
        client.sendall(SLOW)
        until(lambda: stack.upstream.paths)
        with contextlib.suppress(ConnectionError):
            for _ in range(40):
                client.sendall(request * 50)
                time.sleep(pause)
        stack.upstream.gate.set()
        answer = until_closed(client)
    assert statuses(answer) == [b"200"] * (1 + MAX_PIPELINED) + [b"503"]
    assert stack.upstream.paths == ["/v1/slow", *["/v1/many"] * MAX_PIPELINED]


@pytest.mark.parametrize(
    "successor", [b"", post(b"/v1/next", b"abc"), post(b"/v1/next", b"abc")[:-1]], ids=["none", "whole", "begun"]
)
def test_a_client_that_leaves_ends_its_request_in_spite_of_a_successor(stack: Stack, successor: bytes) -> None:
    with connected(stack.port) as client:
        client.sendall(post(b"/v1/endless", b"abc") + successor)
        assert b"data: 1" in client.recv(4096) + client.recv(4096)
    until(lambda: stack.upstream.streams == 0)
    assert stack.upstream.paths == ["/v1/endless"]


def test_requests_before_a_bad_one_are_answered(stack: Stack) -> None:
    with connected(stack.port) as client:
        client.sendall(SLOW + post(b"/v1/next", b"abc") + b"GET / HTTP/9.9\r\n\r\n" + post(b"/v1/last", b"abc"))
        stack.upstream.gate.set()
        assert statuses(until_closed(client)) == [b"200", b"200", b"400"]
    assert stack.upstream.paths == ["/v1/slow", "/v1/next"]


def test_a_body_that_breaks_in_a_queued_request_is_not_forwarded(stack: Stack) -> None:
    chunked = b"POST /v1/next HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n"
    with connected(stack.port) as client:
        client.sendall(SLOW + chunked)
        stack.upstream.gate.set()
        assert statuses(until_closed(client)) == [b"200", b"400"]
    assert stack.upstream.paths == ["/v1/slow"]


def test_a_bad_request_is_answered_although_the_last_response_is_not_quite_complete(stack: Stack) -> None:
    # The client has the whole body before the proxy has ended the exchange.
    stack.upstream.gate.set()
    answers = []
    for _ in range(200):
        with connected(stack.port) as client:
            client.sendall(b"GET /v1/offer HTTP/1.1\r\n" + HOST + b"\r\n")
            received = b""
            while not received.endswith(b"ok"):
                received += client.recv(4096)
            client.sendall(b"GET /v1/offer HTTP/1.1\r\nHost: a]b\r\n\r\n")
            answers.append(tuple(statuses(received + until_closed(client))))
    assert set(answers) == {(b"200", b"400")}
