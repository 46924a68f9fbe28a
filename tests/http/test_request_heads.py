"""Request framing: no body is read as a request, and a connection is reused only after complete requests and responses."""

import asyncio
import contextlib
import logging
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.http.conftest import Recorder
from tests.servers import run_connections, run_front

CHAT = b'{"model":"m","messages":[{"role":"user","content":"Hi %d?"}]}'
INNER = b"GET /admin/cache?limit=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HOST = b"Host: 127.0.0.1\r\n"
LAST = b"GET /v1/last HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
"""A request that ends its connection after the response."""
UPGRADES = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"


@pytest.fixture(scope="module")
def port(recording: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    limits = {"body_bytes": 4096, "body_seconds": 1.0}
    with run_front(tmp_path_factory.mktemp("framing"), recording.url, limits=limits) as (url, _):
        yield httpx.URL(url).port or 0


@contextlib.contextmanager
def connected(port: int, sent: bytes = b"", *, small: bool = False) -> Iterator[socket.socket]:
    with socket.socket() as client:
        if small:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.settimeout(60)
        client.connect(("127.0.0.1", port))
        client.sendall(sent)
        yield client


def until_closed(client: socket.socket) -> bytes:
    got = b""
    with contextlib.suppress(ConnectionError):
        while part := client.recv(65_536):
            got += part
    return got


def statuses(answer: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.1 (\d+) ", answer)


def post(path: bytes, body: bytes, *headers: bytes) -> bytes:
    head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + b"".join(header + b"\r\n" for header in headers)
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_the_body_of_an_h2c_offer_is_no_request(port: int, recorder: Recorder) -> None:
    """The body comes in a second segment, as every reverse proxy sends it."""
    head = b"POST /v1/other HTTP/1.1\r\n" + HOST + b"X-Forwarded-For: 203.0.113.9\r\n"
    head += b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(INNER)
    with connected(port) as client:
        client.sendall(head)
        time.sleep(0.3)
        client.sendall(INNER + LAST)
        assert statuses(until_closed(client)) == [b"200"] * 2
    assert recorder.requests == [("POST", "/v1/other", INNER), ("GET", "/v1/last", b"")]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_h2c_offer_is_ignored_and_its_body_read(port: int, recorder: Recorder, split: bool, chunked: bool) -> None:
    """Java's HttpClient offers h2c by default. The connection serves a second request."""
    framing = b"Transfer-Encoding: chunked\r\n" if chunked else b"Content-Length: 5\r\n"
    body = b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n" if chunked else b"abcde"
    head = b"POST /v1/java HTTP/1.1\r\n" + HOST + UPGRADES + framing + b"\r\n"
    with connected(port) as client:
        if split:
            for byte in head:
                client.sendall(bytes([byte]))
            time.sleep(0.1)
            client.sendall(body)
            client.sendall(LAST)
        else:
            client.sendall(head + body + LAST)
        assert statuses(until_closed(client)) == [b"200", b"200"]
    assert recorder.requests == [("POST", "/v1/java", b"abcde"), ("GET", "/v1/last", b"")]
    assert not {"upgrade", "http2-settings"} & recorder.headers[0].keys()
    assert "upgrade" not in recorder.headers[0].get("connection", "").lower()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /v1/realtime HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b"426"),
        (b"GET /v1/realtime HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\n\r\n", b"426"),
        (post(b"/v1/other", INNER, b"Connection: Upgrade", b"Upgrade: h2c, websocket"), b"426"),
        (post(b"/v1/other", INNER, b"Connection: upgrade", b"Upgrade: TLS/1.0"), b"501"),
        (b"CONNECT 127.0.0.1:80 HTTP/1.1\r\n" + HOST + b"\r\n", b"501"),
        (b"CONNECT /v1/other HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n", b"501"),
        (post(b"/v1/other", b"abc", b"Expect: 200-ok"), b"417"),
        (post(b"/v1/other", b"abc", b"Transfer-Encoding: chunked"), b"400"),
        (post(b"/v1/other", b"abc", b"Transfer-Encoding: chunked, identity"), b"400"),
        (post(b"/v1/other", b"abc", b"Content-Length: 4"), b"400"),
        (post(b"/v1/other", b"abc", b"Content-Length: 3"), b"400"),
        (post(b"/v1/other", b"abc", b"Transfer-Encoding: identity"), b"400"),
        (post(b"/v1/other", b"abc", b"Transfer-Encoding : chunked"), b"400"),
        (post(b"/v1/other", b"abc", b"X-Folded: a\r\n b"), b"400"),
        (post(b"/v1/other", b"abc", b"Host: elsewhere"), b"400"),
        (b"GET /v1/other HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /v1/other HTTP/1.1\r\nHost: 127.0.0.1/v1\r\n\r\n", b"400"),
        (b"GET /v1/other HTTP/1.1\r\nHost: user@127.0.0.1\r\n\r\n", b"400"),
        (b"GET /v1/other HTTP/1.1\r\nHost: \r\n\r\n", b"400"),
        (b"GET /v1/other HTTP/1.1\r\nHost: :80\r\n\r\n", b"400"),
        (b"POST /v1/other HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01hello\r\n\r\n", b"400"),
        (b"GET /v1/otherHTTP/1.1\r\n" + HOST + b"\r\n", b"400"),
        (b"GET /v1/other HTTP/2.0\r\n" + HOST + b"\r\n", b"400"),
        (b"GET /v1/other HTTP/1.1\nHost: a\n\n", b"400"),
        (b"GET /v1/a%0d%0ab HTTP/1.1\r\n" + HOST + b"\r\n", b"400"),
        (b"GET /v1/a%00b HTTP/1.1\r\n" + HOST + b"\r\n", b"400"),
        (b"POST /v1/other HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n", b"400"),
        (b"POST /v1/other HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n", b"400"),
        (
            b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
            b"3\r\nabc\r\n0\r\nContent-Length: 3\r\n\r\n",
            b"400",
        ),
    ],
)
def test_ambiguous_framing_is_refused_and_the_connection_closed(
    port: int, recorder: Recorder, sent: bytes, status: bytes
) -> None:
    with connected(port) as client:
        client.sendall(sent + b"GET /v1/smuggled HTTP/1.1\r\n" + HOST + b"\r\n")
        answer = until_closed(client)
    assert statuses(answer) == [status]
    assert b"connection: close" in answer.lower()
    assert b'"error"' in answer
    assert all(path != "/v1/smuggled" for _, path, _ in recorder.requests)


def test_trailers_do_not_become_headers(port: int, recorder: Recorder) -> None:
    with connected(port) as client:
        client.sendall(
            b"POST /v1/other HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nTrailer: X-Late\r\n\r\n"
            b"3\r\nabc\r\n0\r\nX-Late: 1\r\nAuthorization: Bearer stolen\r\n\r\n" + LAST
        )
        assert statuses(until_closed(client)) == [b"200"] * 2
    assert not {"x-late", "authorization", "trailer"} & recorder.headers[0].keys()


EARLY = {
    "too large": (b"/v1/chat/completions", 100_000, b"413"),
    "no such route": (b"/admin/nowhere", 50_000, b"40[34]"),
}


@pytest.mark.parametrize("case", EARLY)
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_an_early_answer_closes_the_connection(port: int, recorder: Recorder, case: str, framing: str) -> None:
    """The rest of the body arrives later, and looks like a request."""
    path, size, status = EARLY[case]
    body = b"x" * (size - len(INNER)) + INNER
    head = b"POST " + path + b" HTTP/1.1\r\n" + HOST
    if framing == "length":
        head, begun = head + b"Content-Length: %d\r\n\r\n" % size, body[: size // 2]
        rest = body[size // 2 :]
    else:
        head, begun = head + b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n" % size + body[: size // 2]
        rest = body[size // 2 :] + b"\r\n0\r\n\r\n"
    with connected(port) as client:
        client.sendall(head + begun)
        time.sleep(0.2)
        with contextlib.suppress(ConnectionError):
            client.sendall(rest + b"GET /v1/next HTTP/1.1\r\n" + HOST + b"\r\n")
        answer = until_closed(client)
    (given,) = statuses(answer)
    assert re.fullmatch(status, given)
    assert b"connection: close" in answer.lower()
    assert recorder.requests == []


def test_a_body_that_comes_too_slowly_closes_the_connection(port: int, recorder: Recorder) -> None:
    with connected(port) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 500\r\n\r\nabc")
        answer = until_closed(client)
    assert statuses(answer) == [b"408"]


def test_a_client_that_leaves_in_the_middle_of_an_upload_forwards_nothing_whole(port: int, recorder: Recorder) -> None:
    with connected(port) as client:
        client.sendall(b"POST /v1/other HTTP/1.1\r\n" + HOST + b"Content-Length: 500\r\n\r\n" + INNER)
    time.sleep(0.3)
    assert httpx.get(f"http://127.0.0.1:{port}/v1/next").status_code == 200
    assert recorder.requests == [("GET", "/v1/next", b"")]


def test_a_pipelined_successor_of_a_whole_request_is_answered(port: int, recorder: Recorder) -> None:
    with connected(port) as client:
        client.sendall(b"".join(post(b"/v1/other/%d" % n, b"body %d" % n) for n in range(5)) + LAST)
        assert statuses(until_closed(client)) == [b"200"] * 6
    assert recorder.requests[:5] == [("POST", f"/v1/other/{n}", b"body %d" % n) for n in range(5)]


@pytest.mark.parametrize("path", [b"/v1/other", b"/v1/chat/completions"])
def test_white_space_after_a_value_is_no_part_of_it(port: int, recorder: Recorder, path: bytes) -> None:
    with connected(port) as client:
        client.sendall(
            b"POST " + path + b" HTTP/1.1\r\n" + HOST + b"X-Kind: a \t\r\nContent-Length: 3 \r\n\r\nabc" + LAST
        )
        assert statuses(until_closed(client)) == [b"200"] * 2
    assert recorder.requests[0][2] == b"abc"
    assert recorder.headers[0]["x-kind"] == "a"


@pytest.mark.parametrize("path", [b"/v1/stream", b"/v1/chat/completions"])
def test_http_1_0_gets_no_chunked_framing(port: int, recorder: Recorder, path: bytes) -> None:
    body = CHAT % 3
    with connected(port) as client:
        client.sendall(b"POST " + path + b" HTTP/1.0\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = until_closed(client)
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert rest in (
        b"data: 1\n\ndata: [DONE]\n\n",
        b'{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}',
    )


def test_expect_100_continue_is_answered_when_the_body_is_wanted(port: int, recorder: Recorder) -> None:
    body = CHAT % 4
    head = post(b"/v1/chat/completions", body, b"Expect: 100-continue")[: -len(body)]
    with connected(port) as client:
        client.sendall(head)
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body + LAST)
        assert statuses(until_closed(client)) == [b"200"] * 2
    # A body that is refused by its length is never asked for.
    with connected(port) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST)
        client.sendall(b"Expect: 100-continue\r\nContent-Length: 99999\r\n\r\n")
        assert statuses(until_closed(client)) == [b"413"]


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_no_100_continue_without_need(port: int, recorder: Recorder, version: bytes) -> None:
    """HTTP/1.0 has no interim responses, and a body that has arrived needs no interim response."""
    sent = post(b"/v1/chat/completions", CHAT % 5, b"Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/" + version, 1)
    with connected(port) as client:
        client.sendall(sent[:-10] if version == b"1.0" else sent + LAST)
        time.sleep(0.1)
        client.sendall(sent[-10:] if version == b"1.0" else b"")
        assert statuses(until_closed(client)) == [b"200"] * (1 if version == b"1.0" else 2)


_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
BODILESS = [
    b"304 Not Modified\r\ncontent-length: 5\r\netag: a",
    b"304 Not Modified\r\netag: a",
    b"204 No Content\r\ncontent-length: 5",
    b"204 No Content\r\ncontent-length: 0",
    b"204 No Content",
]


async def serve_bodiless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer /v1/odd/NUMBER with one of the heads, and any other path with `ok`."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            odd = re.search(rb" /v1/odd/(\d) ", head)
            writer.write(b"HTTP/1.1 " + BODILESS[int(odd[1])] + b"\r\n\r\n" if odd else _OK)


def test_a_connection_serves_the_next_request_after_a_response_without_body(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with run_connections(serve_bodiless) as upstream, run_front(tmp_path, upstream) as (url, _):
        for number, head in enumerate(BODILESS):
            with connected(httpx.URL(url).port or 0) as client:
                client.sendall(b"GET /v1/odd/%d HTTP/1.1\r\n" % number + HOST + b"\r\n")
                client.sendall(LAST)
                first, _, rest = until_closed(client).partition(b"\r\n\r\n")
            assert first.startswith(b"HTTP/1.1 " + head[:3])
            # A 304 may have the length of the response that it confirms.
            assert (b"content-length" in first) == (number == 0)
            assert b"transfer-encoding" not in first
            assert rest.startswith(b"HTTP/1.1 200 OK")
            assert rest.endswith(b"\r\n\r\nok")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
