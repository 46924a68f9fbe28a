"""Semantic lookups of new questions: an open loop with Poisson arrivals, and an upstream that responds after 200 ms.

python -m tests.benchmarks.new_questions STREAM [--rate 100] [--seconds 30]

STREAM has lines `{"text", "answer"}`, as for `kvproxy calibrate --stream`. Each question is sent once, in random order, to a
proxy with an empty data folder and the default settings. The load, the upstream, and the proxy run in processes of their own.
Added latency is the time of a request minus the time of the upstream; it depends on the load of the machine. If requests
queued, it would be higher in the last third of the questions than in the first. Exact hits are sent beside the questions, 10 per
second.
"""

import asyncio
import random
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson

from kvproxy.index.evaluation.stream_evaluation import StreamLine, read_stream
from tests.benchmarks.load import PATH
from tests.benchmarks.options import read_options
from tests.benchmarks.servers import answering_app, cpu_seconds, kvproxy, run_process

UPSTREAM_SECONDS = 0.2
HIT_SECONDS = 0.1
SYSTEM = "You are a helpful assistant."


class Reply(NamedTuple):
    """A response: its `Cache-Status`, whether it answers its question, and the seconds until its last byte."""

    status: str
    right: bool
    seconds: float


async def send_all(url: str, lines: list[StreamLine], rate: float) -> tuple[list[Reply], list[Reply]]:
    """Send each question at its time, even if earlier ones are in flight; return the replies in this order, and exact hits."""
    import aiohttp

    generator = random.Random(1)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def send(line: StreamLine) -> Reply:
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": line.text}]
            body = orjson.dumps({"model": "m", "messages": messages})
            began = time.perf_counter()
            async with session.post(url + PATH, data=body, headers={"content-type": "application/json"}) as response:
                data = await response.read()
                assert response.status == 200, data
                right = f"about {line.answer}.".encode() in data
                return Reply(response.headers["cache-status"], right, time.perf_counter() - began)

        async def repeat(line: StreamLine) -> list[Reply]:
            hits = []
            while not ended.is_set():
                hits.append(await send(line))
                await asyncio.sleep(HIT_SECONDS)
            return hits

        first, *others = lines
        ended, replies = asyncio.Event(), [await send(first)]
        hits = asyncio.create_task(repeat(first))
        tasks, due = list[asyncio.Task[Reply]](), time.perf_counter()
        for line in others:
            due += generator.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(send(line)))
        replies += await asyncio.gather(*tasks)
        ended.set()
        return replies, await hits


def decided_share(replies: list[Reply]) -> float:
    """Return the share of the questions whose semantic lookup was not skipped."""
    return sum("skipped" not in reply.status for reply in replies) / len(replies)


def shuffled_lines(stream: Path) -> list[StreamLine]:
    lines = list({line.text: line for line in read_stream(stream)}.values())
    random.Random(0).shuffle(lines)
    return lines


def answers_of(lines: list[StreamLine]) -> dict[str, str]:
    return {line.text: f"This is the answer about {line.answer}." for line in lines}


def summary(replies: list[Reply], hits: list[Reply], cpu: float, seconds: float) -> str:
    served = sum("hit" in reply.status for reply in replies)
    wrong = sum("hit" in reply.status and not reply.right for reply in replies)
    added = [1e3 * (reply.seconds - UPSTREAM_SECONDS) for reply in replies if "hit" not in reply.status]
    third = len(added) // 3
    p50, p99 = np.percentile(added, (50, 99))
    first, last = np.median(added[:third]), np.median(added[-third:])
    hit_p50, hit_p99 = np.percentile([1e3 * reply.seconds for reply in hits], (50, 99))
    return (
        f"{len(replies)} requests, {len(replies) / seconds:.0f}/s: {decided_share(replies):.1%} decided,"
        f" {served / len(replies):.1%} served ({wrong} wrong), {1e3 * cpu / len(replies):.1f} ms of CPU per request,"
        f" added latency p50 {p50:.1f} ms (first third {first:.1f}, last third {last:.1f}), p99 {p99:.1f} ms;"
        f" exact hits p50 {hit_p50:.1f} ms, p99 {hit_p99:.1f} ms"
    )


def main() -> None:
    options = read_options(__doc__, "stream", rate=100.0, seconds=30.0)
    lines = shuffled_lines(options.stream)
    with (
        run_process(partial(answering_app, answers_of(lines), UPSTREAM_SECONDS)) as target,
        tempfile.TemporaryDirectory() as folder,
        kvproxy(Path(folder), "--upstream", target) as server,
    ):
        before, began = cpu_seconds(server.process.pid), time.perf_counter()
        replies, hits = asyncio.run(send_all(server.url, lines[: int(options.rate * options.seconds)], options.rate))
        seconds = time.perf_counter() - began
        print(summary(replies, hits, cpu_seconds(server.process.pid) - before, seconds))


if __name__ == "__main__":
    main()
