"""Clients that mean harm, all at once: heads that trickle, floods of headers, bombs of gzip, storms of disconnects.

Meanwhile others are served, and afterwards the proxy holds what it held. `python -m tests.faults.overload --rounds 120`
"""

import asyncio
import contextlib
import gzip
import random
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.faults.harness import Advance, Finding, Harness, Timer, main
from tests.faults.proxies import proxy_process
from tests.processes import Serving
from tests.servers import run_app

_WHOLE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]}
_CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
_BODY = b'{"model": "m", "messages": [{"role": "user", "content": "%d"}]}'
_BOMB = gzip.compress(bytes(50 << 20))
_AT_ONCE = 60
_PATIENCE = 30.0
_MOST_MEMORY = 300_000
"""KiB that an attack may add, less than any bomb would take that is unpacked."""
_SETTINGS = {
    "limits__header_seconds": 3.0,
    "limits__body_seconds": 1.0,
    "limits__body_bytes": 1_000_000,
    "limits__header_bytes": 16_384,
    "limits__stalled_seconds": 10.0,
    "limits__drain_seconds": 1.0,
}
Attack = Callable[[str, int, int], Awaitable[bytes]]


@contextlib.contextmanager
def upstream() -> Iterator[str]:
    """A server that answers a question at once, and any other request with a bomb."""

    async def chat(request: Request) -> Response:
        await request.body()
        return JSONResponse(_WHOLE)

    async def bomb(request: Request) -> Response:
        return Response(_BOMB, media_type="application/json", headers={"content-encoding": "gzip"})

    chats = [Route("/v1/chat/completions", chat, methods=["POST"]), Route("/health", chat)]
    with run_app(Starlette(routes=[*chats, Route("/{path:path}", bomb, methods=["GET", "POST"])])) as url:
        yield url


def run(rounds: int, seed: int, advance: Advance) -> list[Finding]:
    """Attack so many times in all, each kind as often as the others, with honest requests beside it."""
    findings = []
    with tempfile.TemporaryDirectory() as folder, upstream() as url:
        where = Path(folder)
        with proxy_process(url, where / "data", where / "log", "--no-semantic", **_SETTINGS) as proxy:
            for place, attack in enumerate(ATTACKS):
                share = rounds // len(ATTACKS) + (place < rounds % len(ATTACKS))
                finding = Finding(f"overload: {attack.__name__.replace('_', ' ')}")
                with Timer(finding):
                    asyncio.run(_attack(proxy, attack, share, seed, advance, finding))
                findings.append(finding)
        log = (where / "log").read_text()
        if "Traceback" in log:
            findings[-1].failures.append(f"a traceback: {log[-800:]}")
    return findings


async def _attack(proxy: Serving, attack: Attack, rounds: int, seed: int, advance: Advance, finding: Finding) -> None:
    port = httpx.URL(proxy.url).port or 0
    before, done = _memory(proxy), asyncio.Event()
    honest = asyncio.create_task(_honest(proxy.url, seed, done, finding))
    for number in range(rounds):
        each = (_bounded(attack(proxy.url, port, seed + number * _AT_ONCE + place)) for place in range(_AT_ONCE))
        for answer in await asyncio.gather(*each):
            finding.counts[answer.decode("latin-1")] += 1
        finding.rounds += 1
        advance()
    done.set()
    await honest
    grown = _memory(proxy) - before
    if grown > _MOST_MEMORY:
        finding.failures.append(f"memory grew by {grown:,} KiB")
    if not finding.counts["served meanwhile"]:
        finding.failures.append("nobody else was served")


async def _bounded(attack: Awaitable[bytes]) -> bytes:
    try:
        return await asyncio.wait_for(attack, _PATIENCE)
    except TimeoutError:
        return b"never ended"
    except (ConnectionError, asyncio.IncompleteReadError):
        return b"cut off"


async def _honest(url: str, seed: int, done: asyncio.Event, finding: Finding) -> None:
    """Somebody who asks questions, one after the other, until the attacks are over."""
    generator = random.Random(seed)
    async with httpx.AsyncClient(timeout=_PATIENCE) as client:
        while not done.is_set():
            body = {"model": "m", "messages": [{"role": "user", "content": str(generator.randrange(40))}]}
            try:
                answer = await client.post(f"{url}/v1/chat/completions", json=body)
            except httpx.HTTPError as error:
                finding.failures.append(f"an honest request: {error!r}")
                continue
            finding.counts["served meanwhile"] += answer.status_code == 200
            if answer.status_code != 200:
                finding.failures.append(f"an honest request: {answer.status_code} {answer.text[:200]}")


def _memory(proxy: Serving) -> int:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{proxy.process.pid}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0])


@contextlib.asynccontextmanager
async def _connected(port: int):  # type: ignore[no-untyped-def]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _status(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()
    return line.split()[1] if line else b"cut off"


async def heads_that_trickle(url: str, port: int, number: int) -> bytes:
    async with _connected(port) as (reader, writer):
        answer = asyncio.ensure_future(_status(reader))
        writer.write(_CHAT)
        while not answer.done():
            writer.write(b"x-%d: 1\r\n" % number)
            await asyncio.wait([answer], timeout=0.2)
        return await answer


async def bodies_that_trickle(url: str, port: int, number: int) -> bytes:
    async with _connected(port) as (reader, writer):
        answer = asyncio.ensure_future(_status(reader))
        writer.write(_CHAT + b"Content-Length: 500000\r\n\r\n")
        while not answer.done():
            writer.write(b" ")
            await asyncio.wait([answer], timeout=0.2)
        return await answer


async def floods_of_headers(url: str, port: int, number: int) -> bytes:
    async with _connected(port) as (reader, writer):
        many = b"".join(b"x-%d: %d\r\n" % (each, number) for each in range(5000))
        writer.write(_CHAT + (many if number % 2 else b"x: " + b"y" * 200_000) + b"\r\n\r\n")
        return await _status(reader)


async def bombs_of_clients(url: str, port: int, number: int) -> bytes:
    async with _connected(port) as (reader, writer):
        head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(_BOMB)
        writer.write(_CHAT + head + _BOMB)
        return await _status(reader)


async def bombs_of_the_upstream(url: str, port: int, number: int) -> bytes:
    async with _connected(port) as (reader, writer):
        body = _BODY % number
        path = b"/v1/messages" if number % 2 else b"/v1/rerank"
        head = _CHAT.replace(b"/v1/chat/completions", path) + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(
            body
        )
        writer.write(head + body)
        status = await _status(reader)
        while await reader.read(1 << 16):
            pass
        return status


async def storms_of_disconnects(url: str, port: int, number: int) -> bytes:
    generator = random.Random(number)
    async with _connected(port) as (_, writer):
        body = _BODY % number
        request = _CHAT + b"Content-Length: %d\r\n\r\n" % len(body) + body
        writer.write(request[: generator.randrange(1, len(request) + 200)])
        await writer.drain()
        await asyncio.sleep(generator.uniform(0, 0.05))
    return b"left"


ATTACKS: tuple[Attack, ...] = (
    heads_that_trickle,
    bodies_that_trickle,
    floods_of_headers,
    bombs_of_clients,
    bombs_of_the_upstream,
    storms_of_disconnects,
)
HARNESS = Harness("overload", 120, run)

if __name__ == "__main__":
    main(HARNESS)
