"""Attacks by many clients: trickling heads and bodies, floods of headers, gzip bombs, and storms of disconnects.

An honest client is served meanwhile, and the memory of the proxy is bounded.
"""

import asyncio
import contextlib
import gzip
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tests.benchmarks.servers import resident_mib
from tests.faults.harness import Advance, Finding, split
from tests.faults.proxies import CHAT, chat, proxy_process
from tests.plain_upstream import WHOLE
from tests.processes import Serving
from tests.servers import run_upstream

_HEAD = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_CHAT_HEAD = _HEAD % CHAT.encode()
_BODY = b'{"model": "m", "messages": [{"role": "user", "content": "%d"}]}'
_BOMB = gzip.compress(bytes(50 << 20))
_CLIENTS = 60
_TIMEOUT = 30.0
_MAX_GROWTH = 300.0
"""MiB per attack; the bombs would unpack to far more."""
_SETTINGS = {
    "limits__header_seconds": 3.0,
    "limits__body_seconds": 1.0,
    "limits__body_bytes": 1_000_000,
    "limits__header_bytes": 16_384,
    "limits__stalled_seconds": 10.0,
    "limits__drain_seconds": 1.0,
}
Attack = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[str]]
"""Attacks over a connection, with a number that differs for each client; returns the outcome."""


@contextlib.contextmanager
def upstream() -> Iterator[str]:
    """Run a server that answers chat requests at once, and other requests with a bomb."""

    async def answer(request: Request) -> Response:
        await request.body()
        if request.url.path in (CHAT, "/health"):
            return JSONResponse(WHOLE)
        return Response(_BOMB, media_type="application/json", headers={"content-encoding": "gzip"})

    with run_upstream(answer) as url:
        yield url


def run(rounds: int, seed: int, advance: Advance) -> list[Finding]:
    """Attack with all clients at once in each round, the kinds of attacks in turn."""
    findings = [Finding(f"overload: {attack.__name__.replace('_', ' ')}") for attack in ATTACKS]
    with tempfile.TemporaryDirectory() as name, upstream() as url, findings[-1].catch("the proxy"):
        folder = Path(name)
        with proxy_process(url, folder / "data", folder / "log", "--no-semantic", **_SETTINGS) as proxy:
            for (attack, share), finding in zip(split(rounds, ATTACKS), findings, strict=True):
                with finding.timed():
                    asyncio.run(_attack(proxy, attack, share, seed, advance, finding))
    return findings


async def _attack(proxy: Serving, attack: Attack, rounds: int, seed: int, advance: Advance, finding: Finding) -> None:
    before, done = resident_mib(proxy.process.pid), asyncio.Event()
    honest = asyncio.create_task(_honest(proxy.url, seed, done, finding))
    for number in range(rounds):
        first = seed + number * _CLIENTS
        outcomes = (_outcome(proxy.url, attack, each) for each in range(first, first + _CLIENTS))
        finding.counts.update(await asyncio.gather(*outcomes))
        finding.rounds += 1
        advance()
    done.set()
    await honest
    if (growth := resident_mib(proxy.process.pid) - before) > _MAX_GROWTH:
        finding.failures.append(f"the memory grew by {growth:,.0f} MiB")
    if not finding.counts["served meanwhile"]:
        finding.failures.append("the honest client was not served")


async def _outcome(url: str, attack: Attack, number: int) -> str:
    try:
        async with asyncio.timeout(_TIMEOUT), _connection(url) as (reader, writer):
            return await attack(reader, writer, number)
    except TimeoutError:
        return "never ended"
    except (ConnectionError, asyncio.IncompleteReadError):
        return "cut off"


@contextlib.asynccontextmanager
async def _connection(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _honest(url: str, seed: int, done: asyncio.Event, finding: Finding) -> None:
    """Send questions one after the other until the attack ends."""
    generator = random.Random(seed)
    async with httpx.AsyncClient(timeout=_TIMEOUT) as client:
        while not done.is_set():
            try:
                response = await client.post(url + CHAT, json=chat(str(generator.randrange(40))))
            except httpx.HTTPError as error:
                finding.failures.append(f"an honest request: {error!r}")
                continue
            finding.counts["served meanwhile"] += response.status_code == 200
            if response.status_code != 200:
                finding.failures.append(f"an honest request: {response.status_code} {response.text[:200]}")


async def _status(reader: asyncio.StreamReader) -> str:
    line = await reader.readline()
    return line.split()[1].decode() if line else "cut off"


async def _trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, begin: bytes, part: bytes) -> str:
    answer = asyncio.ensure_future(_status(reader))
    writer.write(begin)
    while not answer.done():
        writer.write(part)
        await asyncio.wait([answer], timeout=0.2)
    return await answer


async def heads_that_trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> str:
    return await _trickle(reader, writer, _CHAT_HEAD, b"x-%d: 1\r\n" % number)


async def bodies_that_trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> str:
    return await _trickle(reader, writer, _CHAT_HEAD + b"Content-Length: 500000\r\n\r\n", b" ")


async def floods_of_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> str:
    many = b"".join(b"x-%d: %d\r\n" % (each, number) for each in range(5000))
    writer.write(_CHAT_HEAD + (many if number % 2 else b"x: " + b"y" * 200_000) + b"\r\n\r\n")
    return await _status(reader)


async def bombs_of_clients(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> str:
    writer.write(_CHAT_HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(_BOMB) + _BOMB)
    return await _status(reader)


async def bombs_of_the_upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> str:
    body, path = _BODY % number, b"/v1/messages" if number % 2 else b"/v1/rerank"
    writer.write(_HEAD % path + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
    status = await _status(reader)
    while await reader.read(1 << 16):
        pass
    return status


async def storms_of_disconnects(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> str:
    generator, body = random.Random(number), _BODY % number
    request = _CHAT_HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    writer.write(request[: generator.randrange(1, len(request) + 200)])
    await writer.drain()
    await asyncio.sleep(generator.uniform(0, 0.05))
    return "left"


ATTACKS: tuple[Attack, ...] = (
    heads_that_trickle,
    bodies_that_trickle,
    floods_of_headers,
    bombs_of_clients,
    bombs_of_the_upstream,
    storms_of_disconnects,
)
