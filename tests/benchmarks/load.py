"""Load: chat requests over a number of connections, from a process of their own, or from wrk."""

import asyncio
import itertools
import multiprocessing
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import orjson

PATH = "/v1/chat/completions"
QUESTION = "What is a block?"
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_SCRIPT = Path(__file__).parent / "questions.lua"

Questions = Literal["same", "new"]


@dataclass(frozen=True, slots=True)
class Load:
    """The result of a load: number of requests, requests per second, and latencies in milliseconds."""

    count: int
    rate: float
    p50: float
    p99: float


def body(question: str = QUESTION, *, stream: bool = False) -> bytes:
    """Return a chat request of four messages."""
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! How can I help?"},
        {"role": "user", "content": question},
    ]
    return orjson.dumps({"model": "demo", "temperature": 0, "max_tokens": 16, "stream": stream, "messages": messages})


def _question(questions: Questions, number: int) -> str:
    return QUESTION if questions == "same" else f"How do I repair the printer of case {number}?"


async def _load(url: str, connections: int, seconds: float, questions: Questions, stream: bool) -> Load:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(connector=connector, headers={"content-type": "application/json"}) as session:
        numbers, latencies, start = itertools.count(time.time_ns()), list[float](), time.perf_counter()

        async def work() -> None:
            while (began := time.perf_counter()) < start + seconds:
                data = body(_question(questions, next(numbers)), stream=stream)
                async with session.post(url + PATH, data=data) as response:
                    content = await response.read()
                    assert response.status == 200, content
                    latencies.append(time.perf_counter() - began)

        await asyncio.gather(*(work() for _ in range(connections)))
        elapsed = time.perf_counter() - start
    latencies.sort()
    p50, p99 = (latencies[int(share * len(latencies))] * 1e3 for share in (0.5, 0.99)) if latencies else (0.0, 0.0)
    return Load(len(latencies), len(latencies) / elapsed, p50, p99)


def load(url: str, connections: int, seconds: float, questions: Questions = "same", stream: bool = False) -> Load:
    """Send requests for some seconds, each connection one after the other."""
    return asyncio.run(_load(url, connections, seconds, questions, stream))


def load_process() -> Pool:
    """Return a pool with one process for `load`."""
    return multiprocessing.get_context("spawn").Pool(1)


def wrk(
    url: str,
    connections: int,
    seconds: float,
    questions: Questions,
    seed: int,
    headers: Mapping[str, str] = _NO_HEADERS,
) -> Load:
    """Run wrk, which is faster than every server here; see `questions.lua`."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "30s", "-s", str(_SCRIPT)]
    command += [f"-H{name}: {value}" for name, value in headers.items()]
    arguments = [url + PATH, "--", questions, str(seed)]
    output = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True).stdout
    count, micros, p50, p99, errors = map(int, re.findall(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+)", output)[0])
    assert errors == 0, output
    return Load(count, count / micros * 1e6, p50 / 1e3, p99 / 1e3)
