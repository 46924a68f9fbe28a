"""Connections that bring too much, or take too long: each ends alone, with an error if the client still reads."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kvproxy.http.services import Services
from tests.http.test_request_heads import connected, post, until_closed
from tests.plain_upstream import WHOLE
from tests.polling import until
from tests.processes import answers
from tests.servers import run_app, run_front, run_upstream

GET = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
STREAM = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "%s"}]}'
WHOLE_CHAT = STREAM.replace(b"true", b"false")
PART = b": " + b"x" * 65_000 + b"\n\n"
Proxy = tuple[int, Services]


class Upstream:
    """Streams for ever at /v1/stream, and answers everything else; the parts that it has sent are counted."""

    def __init__(self) -> None:
        self.parts = 0
        self.open = 0

    async def stream(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            self.open += 1
            try:
                while True:
                    self.parts += 1
                    yield PART
                    # The server lets a send to a disconnected client return immediately.
                    await asyncio.sleep(0)
            finally:
                self.open -= 1

        return StreamingResponse(parts(), media_type="text/event-stream")

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        if b'"stream": true' in body:
            return await self.stream(request)
        return JSONResponse({**WHOLE, "padding": "x" * 7 * 2**20} if b"large" in body else WHOLE)


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[str, Upstream]]:
    server = Upstream()
    routes = [
        Route("/v1/stream", server.stream, methods=["POST"]),
        Route("/{path:path}", server.answer, methods=["GET", "POST"]),
    ]
    with run_app(Starlette(routes=routes)) as url:
        yield url, server


@contextmanager
def proxy(data: Path, upstream: str, **limits: float) -> Iterator[Proxy]:
    with run_front(data, upstream, limits=limits) as (url, services):
        yield httpx.URL(url).port or 0, services


@pytest.fixture(scope="module")
def quick(upstream: tuple[str, Upstream], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy of little patience."""
    data = tmp_path_factory.mktemp("quick")
    limits = {"header_bytes": 4096, "headers": 20, "header_seconds": 0.4, "idle_seconds": 0.4, "stalled_seconds": 1.0}
    with proxy(data, upstream[0], **limits) as running:
        yield running


def counted(services: Services, limit: str) -> float:
    text = services.metrics.render().decode()
    found = re.search(rf'^kvproxy_limited_total{{limit="{limit}"}} (\S+)$', text, re.M)
    return float(found[1]) if found else 0.0


def healthy(port: int) -> bool:
    """Wait until the proxy answers: on a busy machine, a head may arrive after the short limits of these tests."""
    until(lambda: answers(f"http://127.0.0.1:{port}/health"))
    return True


TOO_LARGE, TOO_SLOW = rb"HTTP/1\.1 431 .*headers_too_large", rb"HTTP/1\.1 408 "
LIMITED = {
    "many headers": (GET + b"".join(b"x-%d: 1\r\n" % number for number in range(30)) + b"\r\n", "headers", TOO_LARGE),
    "a long header": (GET + b"x: " + b"y" * 5_000 + b"\r\n\r\n", "header_bytes", TOO_LARGE),
    "a long path": (GET.replace(b"/health", b"/" + b"a" * 5_000) + b"\r\n", "header_bytes", TOO_LARGE),
    "an endless header": (GET + b"x: " + b"y" * 2_000_000, "header_bytes", TOO_LARGE),
    # A reset may overtake the answer to these.
    "many trailers": (CHUNKED + b"0\r\n" + b"x: 1\r\n" * 300_000, "header_bytes", rb""),
    "a long trailer": (CHUNKED + b"0\r\nx: " + b"y" * 2_000_000, "header_bytes", rb""),
    "a long extension of a chunk": (CHUNKED + b"1;" + b"y" * 2_000_000, "header_bytes", rb""),
    "no head": (b"", "header_seconds", rb"\Z"),
    "some headers": (GET, "header_seconds", TOO_SLOW),
    "half a header": (GET + b"x: y", "header_seconds", TOO_SLOW),
}


@pytest.mark.parametrize(("sent", "limit", "answered"), LIMITED.values(), ids=LIMITED)
def test_a_request_beyond_a_limit_ends_its_connection(quick: Proxy, sent: bytes, limit: str, answered: bytes) -> None:
    port, services = quick
    before = counted(services, limit)
    with connected(port) as client:
        with suppress(ConnectionError):
            client.sendall(sent)
        assert re.match(answered, until_closed(client), re.DOTALL)
    assert counted(services, limit) == before + 1
    assert healthy(port)


def test_a_request_within_the_limits_is_taken_in_any_parts(upstream: tuple[str, Upstream], tmp_path: Path) -> None:
    head = GET + b"".join(b"x-%d: %s\r\n" % (number, b"y" * 150) for number in range(18)) + b"\r\n"
    body = WHOLE_CHAT % (b"x" * 20_000)
    chunks = [b"%x\r\n%s\r\n" % (len(body[at : at + 50]), body[at : at + 50]) for at in range(0, len(body), 50)]
    chunked = CHUNKED + b"".join(chunks) + b"0\r\nx-trailer: 1\r\n\r\n"
    with proxy(tmp_path, upstream[0], header_bytes=4096, headers=20) as (port, _):
        for sent, size in ((head, 1), (head, 700), (head, 100_000), (chunked, 56)):
            with connected(port) as client:
                for start in range(0, len(sent), size):
                    client.sendall(sent[start : start + size])
                assert client.recv(12) == b"HTTP/1.1 200"


def test_a_head_that_trickles_is_given_up(quick: Proxy) -> None:
    """Each byte that comes is no reason to wait longer."""
    port, services = quick
    before = counted(services, "header_seconds")
    with connected(port, GET) as client:
        client.settimeout(0.05)
        end, answer = time.monotonic() + 60, b""
        while not answer and time.monotonic() < end:
            try:
                client.sendall(b"x")
                answer = client.recv(100)
            except TimeoutError:
                pass
            except ConnectionError:
                break
    assert counted(services, "header_seconds") == before + 1


@pytest.mark.parametrize("after", [b"", b"\r\n"], ids=["silent", "empty lines"])
def test_an_idle_connection_ends(quick: Proxy, after: bytes) -> None:
    port, services = quick
    before = counted(services, "idle_seconds") + counted(services, "header_seconds")
    with connected(port, GET + b"\r\n") as client:
        assert client.recv(12) == b"HTTP/1.1 200"
        client.sendall(after)
        until_closed(client)
    assert counted(services, "idle_seconds") + counted(services, "header_seconds") == before + 1


def test_connections_beyond_the_limit_are_told_to_come_back(
    upstream: tuple[str, Upstream], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with proxy(tmp_path, upstream[0], connections=3) as (port, services):
        with connected(port) as one, connected(port) as two, connected(port) as three:
            until(lambda: len(_open(services, port)) >= 3)
            with connected(port, GET + b"\r\n") as fourth:
                answer = until_closed(fourth)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1" in answer
            assert b"the proxy is overloaded: retry after 1 s" in answer
            assert any("limits.connections" in message for message in caplog.messages)
            with connected(port, post(b"/v1/chat/completions", b"{}", b"X-Request-Id: refused")) as fourth:
                assert until_closed(fourth).startswith(b"HTTP/1.1 503 ")
            (record,) = services.journal.latest(1)
            assert (record.request_id, record.status, record.reason) == ("refused", 503, "refused-busy")
            # Those that are open already are served as before.
            for client in (one, two, three):
                client.sendall(GET + b"\r\n")
                assert client.recv(12) == b"HTTP/1.1 200"
        assert counted(services, "connections") == 2
        assert healthy(port)


def _open(services: Services, port: int) -> list[str]:
    """Connections that the server has accepted."""
    lines = Path("/proc/net/tcp").read_text().splitlines()
    return [line for line in lines if line.split()[1] == f"0100007F:{port:04X}" and line.split()[3] == "01"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (b"/v1/stream", b"{}"),
        (b"/v1/chat/completions", STREAM % b"stalled"),
        # The proxy has all of it in memory.
        (b"/v1/chat/completions", WHOLE_CHAT % b"large"),
    ],
)
def test_a_client_that_reads_nothing_is_cut_off(
    quick: Proxy, upstream: tuple[str, Upstream], path: bytes, body: bytes
) -> None:
    port, services = quick
    before = counted(services, "stalled_seconds")
    with connected(port, post(path, body), small=True) as client:
        until(lambda: counted(services, "stalled_seconds") == before + 1)
        until(lambda: upstream[1].open == 0)
        assert not until_closed(client).endswith((b"0\r\n\r\n", b"}"))


def test_a_client_that_reads_slowly_is_not(quick: Proxy) -> None:
    port, services = quick
    before = counted(services, "stalled_seconds")
    with connected(port, post(b"/v1/stream", b"{}"), small=True) as client:
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            assert client.recv(65_536)
            time.sleep(0.02)
    assert counted(services, "stalled_seconds") == before


def test_one_reader_that_stalls_leaves_its_flight_to_the_others(tmp_path: Path) -> None:
    gate = asyncio.Event()
    loops = []

    async def stream(request: Request) -> Response:
        # Not for the probes.
        if request.method == "POST":
            loops.append(asyncio.get_running_loop())

        async def parts() -> AsyncIterator[bytes]:
            for number in range(40):
                yield b'data: {"choices": [{"index": 0, "delta": {"content": "%d%s"}}]}\n\n' % (number, b"x" * 200_000)
            await gate.wait()
            yield b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'

        return StreamingResponse(parts(), media_type="text/event-stream")

    asked = post(b"/v1/chat/completions", STREAM % b"shared")
    with (
        run_upstream(stream) as url,
        proxy(tmp_path, url, stalled_seconds=0.5) as (port, services),
        connected(port, asked, small=True) as slow,
        connected(port, asked) as quick,
    ):
        got = b""
        while b'"39x' not in got[-200_300:]:
            got += quick.recv(2**20)
        until(lambda: counted(services, "stalled_seconds") == 1)
        loops[0].call_soon_threadsafe(gate.set)
        while not got.endswith(b"0\r\n\r\n"):
            got += quick.recv(2**20)
        assert b"[DONE]" in got
        assert b"collapsed" in got[:2000] or len(loops) == 1
        assert not until_closed(slow).endswith(b"0\r\n\r\n")
