"""Connections to upstreams are reused only after a whole request and a whole response; hop-by-hop headers never cross."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from kvproxy.backends.protocol import Body, Callbacks
from kvproxy.errors import InvalidRequest, KvproxyError, UpstreamError
from kvproxy.upstreams.connection_pool import ConnectionPool, end_to_end_headers
from tests.polling import until_async
from tests.servers import run_connections

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
STALE = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nstale"


@dataclass
class Double:
    """An upstream that answers as soon as it has read a head, and keeps the connection.

    Attributes:
        answers: written after each head, in their order; the last one repeats.
        late: written a moment after each answer.
        received: bytes of each connection.
    """

    answers: list[bytes] = field(default_factory=lambda: [OK])
    late: bytes = b""
    received: list[bytearray] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = bytearray()
        self.received.append(received)
        heads = 0
        with contextlib.suppress(OSError):
            while part := await reader.read(65_536):
                received += part
                while received.count(b"\r\n\r\n") > heads and heads < 8:
                    writer.write(self.answers[min(heads, len(self.answers) - 1)])
                    heads += 1
                    if self.late:
                        await asyncio.sleep(0.05)
                        writer.write(self.late)


@contextlib.asynccontextmanager
async def connected(double: Double) -> AsyncIterator[ConnectionPool]:
    with run_connections(double.serve) as url:
        connection = ConnectionPool(url, 5.0, 5.0, 10)
        connection.open()
        try:
            yield connection
        finally:
            await connection.close()


async def ask(connection: ConnectionPool, body: Body = b"", length: int | None = None, method: str = "POST") -> bytes:
    headers = [] if length is None else [("content-length", str(length))]
    relayed = await connection.request(method, "/", headers, body)
    return b"".join([part async for part in relayed.chunks])


async def parts(*given: bytes, then: Callable[[], None] = lambda: None) -> AsyncIterator[bytes]:
    for each in given:
        yield each
        await asyncio.sleep(0.01)
    then()


def leave() -> None:
    raise ConnectionResetError("the client left")


@pytest.mark.parametrize("late_answer", [False, True])
@pytest.mark.parametrize(
    ("body", "length"),
    [
        (lambda: parts(b"ab"), 10),
        (lambda: parts(), 10),
        (lambda: parts(b"ab", b"cdefghijklmnop"), 3),
        (lambda: parts(b"ab", then=leave), 10),
        (lambda: parts(b"ab", then=leave), None),
    ],
    ids=["too short", "empty", "too long", "client left", "client left, chunked"],
)
async def test_a_body_that_differs_from_its_length_closes_the_connection(
    body: Callable[[], AsyncIterator[bytes]], length: int | None, late_answer: bool
) -> None:
    double = Double([b"" if late_answer else OK])
    async with connected(double) as connection:
        with contextlib.suppress(KvproxyError):
            await asyncio.wait_for(ask(connection, body(), length), 5)
        double.answers = [OK]
        assert await ask(connection, b"GET /other HTTP/1.1\r\n\r\n") == b"ok"
    assert len(double.received) == 2
    # Nothing beyond the declared length was sent.
    assert b"/other" not in double.received[0]
    if length == 3:
        assert double.received[0].endswith(b"\r\n\r\nab")


async def test_a_response_before_the_end_of_the_body_closes_the_connection() -> None:
    double = Double()
    going_on = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"ab"
        await going_on.wait()
        yield b"GET /smuggled HTTP/1.1\r\n\r\n"

    async with connected(double) as connection:
        assert await ask(connection, slow(), 28) == b"ok"
        going_on.set()
        assert await ask(connection, b"next") == b"ok"
    assert len(double.received) == 2
    assert b"smuggled" not in double.received[0]


@pytest.mark.parametrize("late", [False, True], ids=["at once", "while idle"])
@pytest.mark.parametrize("surplus", [STALE, b"x", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["response", "byte", "1xx"])
async def test_bytes_after_the_end_of_a_response_are_dropped(surplus: bytes, late: bool) -> None:
    double = Double([OK if late else OK + surplus], surplus if late else b"")
    async with connected(double) as connection:
        with contextlib.suppress(UpstreamError):
            assert await ask(connection, b"first") == b"ok"
        await asyncio.sleep(0.1)
        double.answers, double.late = [OK], b""
        assert await ask(connection, b"second") == b"ok"
    assert len(double.received) == 2


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nstale"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\nstale"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\nstale"),
    ],
)
async def test_an_unexpected_body_is_dropped(method: str, head: bytes) -> None:
    double = Double([head])
    async with connected(double) as connection:
        with contextlib.suppress(UpstreamError):
            assert await ask(connection, method=method) == b""
        await asyncio.sleep(0.05)
        double.answers = [OK]
        assert await ask(connection, b"second") == b"ok"
    assert len(double.received) == 2


async def test_informational_responses_are_skipped() -> None:
    double = Double([b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + OK])
    async with connected(double) as connection:
        assert await ask(connection, b"first") == b"ok"
        assert await ask(connection, b"second") == b"ok"
    assert len(double.received) == 1


@pytest.mark.parametrize("status", [b"099", b"101 Switching Protocols", b"600", b"999"])
async def test_an_invalid_status_is_an_error_of_the_upstream(status: bytes) -> None:
    double = Double([b"HTTP/1.1 " + status + b"\r\ncontent-length: 2\r\n\r\nok"])
    async with connected(double) as connection:
        with pytest.raises(UpstreamError, match="status") as raised:
            await ask(connection, b"first")
        assert raised.value.status == 502
        double.answers = [OK]
        assert await ask(connection, b"second") == b"ok"


async def test_bytes_of_headers_are_sent_unchanged() -> None:
    double = Double()
    async with connected(double) as connection:
        # The server decodes the headers of clients as latin-1.
        relayed = await connection.request("POST", "/a?b=c", [("x-name", "é".encode().decode("latin-1"))], b"{}")
        assert [part async for part in relayed.chunks] == [b"ok"]
    assert bytes(double.received[0]).startswith(b"POST /a?b=c HTTP/1.1\r\nhost: 127.0.0.1:")
    assert bytes(double.received[0]).endswith(b"\r\nx-name: \xc3\xa9\r\ncontent-length: 2\r\n\r\n{}")


@pytest.mark.parametrize(
    ("path", "value"), [("/", "a\r\nx-other: b"), ("/", "a\n"), ("/", "a\0"), ("/ HTTP/1.1\r\nx-other: b\r\n", "a")]
)
async def test_a_control_character_is_not_sent(path: str, value: str) -> None:
    double = Double()
    async with connected(double) as connection:
        with pytest.raises(InvalidRequest, match="control character"):
            await connection.request("POST", path, [("x-name", value)], b"")
    assert not double.received


@pytest.mark.parametrize(("method", "is_repeated"), [("GET", True), ("POST", False)])
async def test_only_an_idempotent_request_is_repeated_on_a_new_connection(method: str, is_repeated: bool) -> None:
    num_requests = 0

    async def close_second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_requests
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                num_requests += 1
                if num_requests == 2:
                    writer.close()
                    return
                writer.write(OK)

    with run_connections(close_second) as url:
        connection = ConnectionPool(url, 5.0, 5.0, 10)
        connection.open()
        assert await ask(connection, method=method) == b"ok"
        if is_repeated:
            assert await ask(connection, method=method) == b"ok"
        else:
            with pytest.raises(UpstreamError, match="broke off"):
                await ask(connection, method=method)
        await connection.close()
    assert num_requests == 2 + is_repeated


async def test_a_large_body_is_sent_whole_with_its_length() -> None:
    body, double = bytes(range(256)) * 2**14, Double()
    async with connected(double) as connection:
        double.answers = [b""]
        asked = asyncio.ensure_future(ask(connection, body))
        await until_async(lambda: bool(double.received) and double.received[0].endswith(b"\r\n\r\n" + body))
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    assert f"content-length: {len(body)}\r\n".encode() in double.received[0]


def test_hop_by_hop_headers_do_not_cross() -> None:
    given = [
        ("Connection", "Keep-Alive, X-Mine"),
        ("Connection", "content-length"),
        ("X-Mine", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", "AAMAAABkAAQAAP__"),
        ("TE", "trailers"),
        ("Trailer", "X-Late"),
        ("Transfer-Encoding", "chunked"),
        ("Proxy-Connection", "keep-alive"),
        ("Proxy-Authorization", "Basic eDp5"),
        ("Proxy-Authenticate", "Basic"),
        ("Proxy-Authentication-Info", "a=b"),
        ("Proxy-Anything", "1"),
        ("Content-Length", "5"),
        ("Content-Type", "text/plain"),
    ]
    assert end_to_end_headers(given) == [("content-length", "5"), ("content-type", "text/plain")]


async def _after(steps: int, transport: asyncio.BaseTransport) -> None:
    for _ in range(steps):
        await asyncio.sleep(0)
    transport.close()


@pytest.mark.parametrize("steps", range(8))
async def test_a_connection_closed_at_its_reuse_fails_no_request(steps: int) -> None:
    double = Double()
    async with connected(double) as connection:
        assert await ask(connection, b"warm") == b"ok"
        assert connection._connector is not None
        ((idle, *_),) = connection._connector._conns.values()
        transport = idle[0].transport
        assert transport is not None
        asked = asyncio.ensure_future(connection.request("POST", "/", [], b"asks"))
        await asyncio.gather(_after(steps, transport))
        (answer,) = await asyncio.gather(asked, return_exceptions=True)
        if isinstance(answer, UpstreamError):

            def is_received() -> bool:
                return b"asks" in b"".join(map(bytes, double.received))

            # A request is repeated only if it was not sent.
            if answer.unsent:
                await asyncio.sleep(0.01)
                assert not is_received()
            else:
                await until_async(is_received)
        else:
            assert not isinstance(answer, BaseException)
            assert [part async for part in answer.chunks] == [b"ok"]


def test_all_callbacks_run_once_the_last_one_first_even_if_one_fails() -> None:
    calls: list[str] = []

    def fail() -> None:
        calls.append("failing")
        raise ValueError("failed")

    callbacks = Callbacks()
    for callback in (lambda: calls.append("first"), fail, lambda: calls.append("last")):
        callbacks.add(callback)
    with pytest.raises(ValueError, match="failed"):
        callbacks.run()
    callbacks.run()
    assert calls == ["last", "failing", "first"]
