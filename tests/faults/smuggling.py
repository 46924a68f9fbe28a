"""Mutated requests in random segments, against the reference parse of h11.

Each round sends a stream of pipelined requests over one connection. The upstream must see a prefix of the requests that h11
reads in the same bytes, in their order; if it sees fewer of them, the proxy must have closed the connection.
"""

import asyncio
import contextlib
import random
import re
import tempfile
from collections import defaultdict
from pathlib import Path
from urllib.parse import urlsplit

import h11
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from kvproxy.settings import load_settings
from tests.faults.harness import Advance, Finding
from tests.servers import run_proxy, run_upstream

Seen = tuple[bytes, bytes, bytes]
"""Method, target, and body."""
_HOST = re.compile(rb"(?![^:]{2}(:|$))[\w,;\x80-\xff]+(:\d*)?")
"""Hosts that mutations make and that the proxy accepts: names without a dot, but not of two letters, as top-level domains have.

It answers 403 to public names, and continues to read the connection.
"""
_CONNECTIONS = 32
_TIMEOUT = 20.0
_SPACES = re.compile(rb"\A([A-Za-z]+) +([^ \r\n]+) +(HTTP/1\.[01]\r\n)")
_SILENCE = 0.06
"""Seconds without a byte after which a client half-closes its connection."""
_METHODS = (*(b"POST",) * 12, b"PUT", b"PUT", b"GET", b"GET", b"DELETE", b"OPTIONS", b"CONNECT", b"post")
_ODD_BYTES = (b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b"\x00", b",", b";", b"x", b"\x80", b"\x0b")
_ODD_HEADERS = (
    b"Connection: Upgrade\r\nUpgrade: h2c",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
    b"Connection: upgrade\r\nUpgrade: websocket",
    b"Upgrade: h2c",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: Content-Length",
    b"Connection: Transfer-Encoding, Host",
    b"Keep-Alive: timeout=5",
    b"Expect: 100-continue",
    b"Expect: 100-Continue, other",
    b"TE: trailers",
    b"Trailer: X-Late",
    b"Proxy-Connection: keep-alive",
    b"X-Folded: a\r\n b",
    b"Host: elsewhere",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding:\tchunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer_Encoding: chunked",
    b"Content-Length: 0",
    b"Content-Length: +5",
    b"Content-Length: 5, 5",
    b"Content-Length: 0x5",
    b"Content-Length : 5",
)


class _Upstream:
    def __init__(self) -> None:
        self.seen: defaultdict[int, list[Seen]] = defaultdict(list)
        self.unattributed = 0

    async def answer(self, request: Request) -> Response:
        try:
            body = await request.body()
        except ClientDisconnect:
            return Response()
        target: bytes = request.scope["raw_path"]
        if request.scope["query_string"]:
            target += b"?" + request.scope["query_string"]
        round_ = _round_of(target)
        if round_ is not None:
            self.seen[round_].append((request.method.encode(), target, body))
        elif target not in (b"/health", b"/metrics", b"/props", b"/slots"):
            self.unattributed += 1
        return Response(b"ok")


def _round_of(target: bytes) -> int | None:
    """The round that a target names; None if a mutation removed the name."""
    found = re.search(rb"r(\d{6})(?!\d)", target)
    return None if found is None else int(found[1])


def stream(number: int, generator: random.Random) -> bytes:
    """The bytes of one connection: a few requests, most of them mutated."""
    return b"".join(_request(number, place, generator) for place in range(generator.randint(1, 4)))


def _request(number: int, place: int, generator: random.Random) -> bytes:
    path = b"/v1/r%06d/%d" % (number, place)
    inner = b"GET /v1/r%06d/smuggled HTTP/1.1\r\nHost: a\r\n\r\n" % number
    body = generator.choice((b"", b"x" * generator.randint(1, 50), inner, inner * 2, b"0\r\n\r\n" + inner))
    version = b"1.0" if generator.random() < 0.05 else b"1.1"
    lines = [b"%s %s HTTP/%s" % (generator.choice(_METHODS), path, version), b"Host: a"]
    framed, body = _framed(body, generator)
    lines += framed
    if generator.random() < 0.3:
        lines.insert(generator.randint(1, len(lines)), generator.choice(_ODD_HEADERS))
    made = b"\r\n".join(lines) + b"\r\n\r\n" + body
    return _mutated(made, generator) if generator.random() < 0.15 else made


def _framed(body: bytes, generator: random.Random) -> tuple[list[bytes], bytes]:
    match generator.randrange(8):
        case 0:
            return [], body if generator.random() < 0.2 else b""
        case 1 | 2 | 3:
            return [b"Content-Length: %d" % len(body)], body
        case 4:
            return [b"Content-Length: %d" % max(0, len(body) + generator.randint(-3, 3))], body
        case 5:
            return [b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked"], _chunked(body, generator)
        case _:
            return [b"Transfer-Encoding: chunked"], _chunked(body, generator)


def _chunked(body: bytes, generator: random.Random) -> bytes:
    parts = []
    while body:
        size = generator.randint(1, len(body))
        extension = generator.choice((b"", b"", b"", b";a=b", b';a="\r\n', b" ;a"))
        wrong = generator.choice((0,) * 12 + (1, -1))
        parts.append(b"%x%s\r\n%s\r\n" % (max(0, size + wrong), extension, body[:size]))
        body = body[size:]
    trailer = generator.choice((b"", b"", b"X-Late: 1\r\n", b"Content-Length: 3\r\n", b"Host: b\r\n"))
    return b"".join(parts) + b"0\r\n" + trailer + b"\r\n"


def _mutated(made: bytes, generator: random.Random) -> bytes:
    # Digits name the round and stay as they are.
    places = [place for place, byte in enumerate(made) if not chr(byte).isdigit()]
    at = generator.choice(places)
    kept = at + generator.randint(0, 1)
    return made[:at] + generator.choice((b"", *_ODD_BYTES)) + made[kept:]


def reference(sent: bytes) -> list[Seen]:
    """The complete requests that h11 reads in a stream, without those whose host is invalid."""
    found: list[Seen] = []
    rest: bytes | None = sent
    while rest:
        connection = h11.Connection(h11.SERVER)
        # A server may skip empty lines before a request line (RFC 9112, 2.2), and accept several spaces in it (section 3).
        connection.receive_data(_SPACES.sub(rb"\1 \2 \3", rest.lstrip(b"\r\n"), count=1))
        rest = _next(connection, found)
    return found


def _next(connection: h11.Connection, found: list[Seen]) -> bytes | None:
    """Read one request; the bytes after it, or None if the connection ends with it."""
    head: h11.Request | None = None
    body = b""
    with contextlib.suppress(h11.ProtocolError):
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                # HTTP/1.0 requires no host.
                if all(_HOST.fullmatch(value.strip()) for name, value in head.headers if name == b"host"):
                    found.append((head.method, head.target, body))
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                rest = connection.trailing_data[0]
                connection.start_next_cycle()
                return rest
            else:
                break
    return None


async def _send(port: int, sent: bytes, generator: random.Random) -> bool:
    """Send a stream in random segments; whether the proxy closed the connection in time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        rest = sent
        while rest:
            size = generator.choice((1, 3, 20, 100, len(rest)))
            writer.write(rest[:size])
            rest = rest[size:]
            await asyncio.sleep(generator.choice((0, 0, 0.002)))
        with contextlib.suppress(TimeoutError):
            while await asyncio.wait_for(reader.read(65_536), _SILENCE):
                pass
        writer.write_eof()
        async with asyncio.timeout(_TIMEOUT):
            while await reader.read(65_536):
                pass
    except TimeoutError:
        return False
    except OSError:
        # A reset closes a connection, too.
        return True
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return True


async def _attack(port: int, streams: list[bytes], seed: int, advance: Advance) -> list[bool]:
    limit = asyncio.Semaphore(_CONNECTIONS)

    async def one(number: int, sent: bytes) -> bool:
        async with limit:
            closed = await _send(port, sent, random.Random(f"{seed}/segments/{number}"))
            advance()
            return closed

    return await asyncio.gather(*(one(number, sent) for number, sent in enumerate(streams)))


def run(rounds: int, seed: int, advance: Advance) -> list[Finding]:
    """Send mutated streams, and compare the requests that the upstream sees with the reference parse."""
    finding = Finding("smuggled requests", rounds)
    upstream = _Upstream()
    streams = [stream(number, random.Random(f"{seed}/{number}")) for number in range(rounds)]
    with finding.timed(), tempfile.TemporaryDirectory() as folder, run_upstream(upstream.answer) as url:
        settings = load_settings(data=Path(folder), upstream=url, cache={"semantic": False})
        with run_proxy(settings) as (proxy, _):
            closed = asyncio.run(_attack(urlsplit(proxy).port or 0, streams, seed, advance))
    for number, sent in enumerate(streams):
        seen, wanted = upstream.seen[number], [each for each in reference(sent) if _round_of(each[1]) == number]
        finding.counts["requests"] += len(seen)
        finding.counts["all forwarded"] += seen == wanted
        finding.counts["closed early"] += len(seen) < len(wanted)
        if seen != wanted[: len(seen)]:
            finding.failures.append(f"round {number} of seed {seed}: saw {seen}, not {wanted}, in {sent!r}")
        elif not closed[number]:
            finding.failures.append(f"round {number} of seed {seed}: the connection stayed open after {sent!r}")
    if upstream.unattributed:
        finding.counts["unattributed"] = upstream.unattributed
    return [finding]
