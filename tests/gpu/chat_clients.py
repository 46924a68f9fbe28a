"""Concurrent chat clients in a separate process, which reads a `Load` from standard input and writes `Chats`.

python -m tests.gpu.chat_clients < LOAD
"""

import asyncio
import dataclasses
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Load:
    url: str
    clients: int
    bodies: list[dict[str, Any]]  # streaming requests


@dataclass(frozen=True, slots=True)
class Chats:
    seconds: float  # from the first request to the last token
    tokens: list[int]  # completion tokens of each response
    statuses: list[str]  # `Cache-Status` of each response
    first: list[float]  # seconds until each response's first bytes


def chat(load: Load) -> Chats:
    """Start the process, and return its result."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.chat_clients"],
        input=json.dumps(dataclasses.asdict(load)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode:
        raise RuntimeError(f"the clients failed: {done.stderr.strip().splitlines()[-1:]}")
    return Chats(**json.loads(done.stdout))


async def _chat(load: Load) -> Chats:
    import aiohttp

    chats = Chats(0.0, [], [], [])
    bodies = iter(load.bodies)

    async def work(session: aiohttp.ClientSession) -> None:
        for body in bodies:
            began = time.perf_counter()
            async with session.post(f"{load.url}/v1/chat/completions", json=body) as response:
                content = await response.content.readany()
                chats.first.append(time.perf_counter() - began)
                content += await response.content.read()
                last = content.rstrip().removesuffix(b"data: [DONE]").rstrip().rpartition(b"data: ")[2]
                chats.tokens.append(json.loads(last)["usage"]["completion_tokens"])
                chats.statuses.append(response.headers["cache-status"])

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        began = time.perf_counter()
        await asyncio.gather(*(work(session) for _ in range(load.clients)))
        return dataclasses.replace(chats, seconds=time.perf_counter() - began)


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(asyncio.run(_chat(Load(**json.load(sys.stdin)))))))
