"""Many requests: misses, hits, streams, disconnects, and bad requests.

Afterwards memory, descriptors, threads, tasks, and blocks are as before.
"""

import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from kvproxy.apis.sse import encode_event
from tests.faults.harness import Advance, Finding
from tests.faults.proxies import CHAT
from tests.servers import run_upstream

_CONNECTIONS = 32
_GROWTH = {"memory in KiB": 60_000, "descriptors": _CONNECTIONS, "threads": 8}
"""Permitted growth after the first requests; other resources must not grow."""
_ENGINE_REQUESTS = 40_000
"""Requests to the embedded engine, but at most 2 in 5 of a shorter run, and at least 1 in 25."""
_ENGINE_WARM_UP = 20_000
"""Requests until torch has cached code and memory for nearly all shapes of batches; the memory grows until then."""


@contextlib.contextmanager
def upstream() -> Iterator[str]:
    """Run a server that answers at once, and whose streams pause."""

    async def chat(request: Request) -> Response:
        if request.method != "POST":
            return Response()
        body = orjson.loads(await request.body())
        if not isinstance(body["messages"], list):
            return Response(b'{"error": {"message": "messages is not a list"}}', 400)
        text = {"role": "assistant", "content": "An answer to " + body["messages"][-1]["content"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": text, "finish_reason": "stop"}
            usage = {"prompt_tokens": 9, "completion_tokens": 4}
            return JSONResponse({"object": "chat.completion", "choices": [choice], "usage": usage})
        return StreamingResponse(parts(text), media_type="text/event-stream")

    async def parts(text: dict[str, str]) -> AsyncIterator[bytes]:
        for delta, reason in ((text, None), ({"content": " and more"}, None), ({}, "stop")):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            yield encode_event({"object": "chat.completion.chunk", "choices": [choice]})
            await asyncio.sleep(0.001)
        yield encode_event(b"[DONE]")

    with run_upstream(chat) as url:
        yield url


def run(rounds: int, seed: int, advance: Advance) -> list[Finding]:
    """Send most requests to a proxy in front of an upstream, and a few to the embedded engine."""
    findings = []
    with tempfile.TemporaryDirectory() as folder, upstream() as url:
        few = max(40, rounds // 25, min(rounds * 2 // 5, _ENGINE_REQUESTS))
        for name, where, count in (("in front of an upstream", url, rounds - few), ("embedded engine", "-", few)):
            with Finding(f"soaked: {name}").timed() as finding, _proxy(where, Path(folder) / name) as proxy:
                asyncio.run(_soak(proxy, count, seed, advance, finding, engine=where == "-"))
            findings.append(finding)
    return findings


@contextlib.contextmanager
def _proxy(where: str, data: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.faults.soaked", where, str(data)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


async def _soak(proxy: str, rounds: int, seed: int, advance: Advance, finding: Finding, *, engine: bool) -> None:
    generator = random.Random(seed)
    first = rounds * 3 // 5 if engine else rounds // 5
    await _send(proxy, first, generator, advance, finding)
    before = await _idle(proxy, engine=engine)
    await _send(proxy, rounds - first, generator, advance, finding)
    after = await _idle(proxy, engine=engine)
    for name, value in after.items():
        finding.counts[f"{name} before"] = before[name]
        finding.counts[f"{name} after"] = value
        if engine and first < _ENGINE_WARM_UP and name == "memory in KiB":
            finding.counts["too short for a check of memory"] = 1
        elif value > before[name] + _GROWTH.get(name, 0):
            finding.failures.append(f"{name}: {before[name]:,} after the beginning, {value:,} at the end")


async def _send(proxy: str, rounds: int, generator: random.Random, advance: Advance, finding: Finding) -> None:
    numbers = iter(range(rounds))

    async def work(client: aiohttp.ClientSession) -> None:
        for _ in numbers:
            kind = generator.choices(("hit", "miss", "stream", "left", "bad"), (40, 30, 15, 10, 5))[0]
            finding.rounds += 1
            finding.counts[kind] += 1
            try:
                await _ask(client, proxy, kind, generator)
            except (AssertionError, aiohttp.ClientError, TimeoutError) as error:
                finding.failures.append(f"{kind}: {type(error).__name__}: {error}")
            advance()

    limit = aiohttp.TCPConnector(limit=_CONNECTIONS)
    async with aiohttp.ClientSession(connector=limit, timeout=aiohttp.ClientTimeout(120)) as client:
        await asyncio.gather(*(work(client) for _ in range(_CONNECTIONS)))


async def _ask(client: aiohttp.ClientSession, proxy: str, kind: str, generator: random.Random) -> None:
    question = f"{generator.randrange(30) if kind == 'hit' else generator.getrandbits(64)}"
    body: dict[str, Any] = {"model": "demo", "max_tokens": 2, "messages": [{"role": "user", "content": question}]}
    if kind == "bad":
        body = {"messages": generator.choice([7, "x"]), "n": -1}
    if kind in ("stream", "left"):
        body["stream"] = generator.random() < 0.7
    sent = client.post(f"{proxy}{CHAT}", json=body)
    if kind == "left":
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(generator.uniform(0, 0.02)), sent as answer:
                await answer.content.readany()
                answer.close()
        return
    async with sent as answer:
        content = await answer.read()
        assert answer.status < 500, f"{answer.status}: {content[:200]!r}"
        if kind in ("hit", "miss"):
            assert answer.status == 200, content[:200]
        if body.get("stream"):
            assert content.endswith(b"data: [DONE]\n\n"), content[-200:]


async def _idle(proxy: str, *, engine: bool) -> dict[str, int]:
    """Return the resources of the proxy when no request is in flight."""
    last: dict[str, int] = {}
    for _ in range(100):
        await asyncio.sleep(0.2)
        async with httpx.AsyncClient(timeout=300) as client:
            now: dict[str, int] = (await client.get(f"{proxy}/resources")).json()
            if engine:
                blocks = (await client.get(f"{proxy}/admin/blocks/stats")).json()
                now["blocks in use"] = blocks["used"]
        calm = {name: value for name, value in now.items() if name != "memory in KiB"}
        if calm == last and now["flights"] == 0 and now["tasks"] < _CONNECTIONS:
            return now
        last = calm
    return now
