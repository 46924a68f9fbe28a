"""The load of the proxy benchmark: chat requests over a number of connections, from a process of their own."""

import asyncio
import time
import uuid
from dataclasses import dataclass

import orjson

PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Load:
    """What one load saw: requests a second, and each request's seconds to its last byte, in order of size."""

    rate: float
    seconds: list[float]

    def quantile(self, share: float) -> float:
        return self.seconds[min(len(self.seconds) - 1, int(share * len(self.seconds)))]


def body(stream: bool, question: str | None) -> bytes:
    """A chat request of four messages; without a question always the same one."""
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! How can I help?"},
        {"role": "user", "content": question or "What is a block?"},
    ]
    return orjson.dumps({"model": "m", "stream": stream, "messages": messages})


async def _load(url: str, connections: int, stream: bool, hit: bool, duration: float) -> Load:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(connector=connector, headers={"content-type": "application/json"}) as session:
        seconds: list[float] = []
        run, start = uuid.uuid4().hex, time.perf_counter()

        async def work(worker: int) -> None:
            number = 0
            while (began := time.perf_counter()) < start + duration:
                # A miss is a question of its own, so that none hits and none is collapsed.
                number += 1
                sent = body(stream, None if hit else f"{run} {worker} {number}")
                async with session.post(url + PATH, data=sent) as response:
                    data = await response.read()
                    assert response.status == 200, data
                seconds.append(time.perf_counter() - began)

        await asyncio.gather(*map(work, range(connections)))
        return Load(len(seconds) / (time.perf_counter() - start), sorted(seconds))


def load(url: str, connections: int, stream: bool, hit: bool, duration: float) -> Load:
    """Send requests for some seconds, and wait for the last of them."""
    return asyncio.run(_load(url, connections, stream, hit, duration))
