"""An overloaded proxy: twice as many new questions per second as it can answer, with exact hits beside them.

python -m tests.benchmarks.overload [--times 2] [--seconds 20] [--flags=--no-semantic]
python -m tests.benchmarks.overload --clients 768 [--seconds 20] [--flags=--no-semantic]

The capacity is the rate of wrk with 64 connections. Then questions arrive at a constant rate (`--times` the capacity), each
without waiting for the earlier ones, and 20 exact hits per second. The upstream is an nginx that responds at once; load, proxy,
and upstream share the cores. With `--clients`, this number of clients send new questions, each after its last response, and one
client sends exact hits. If requests queued without limit, those of the last third would wait longer than those of the first.
"""

import asyncio
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import uvloop

from tests.benchmarks.gateways import constant_upstream
from tests.benchmarks.load import PATH, body, wrk
from tests.benchmarks.options import read_options
from tests.benchmarks.servers import kvproxy

HIT_SECONDS = 0.05


class Reply(NamedTuple):
    """A response: its status (0 without a response), the beginning of an error, and the seconds until its last byte."""

    status: int
    cache: str
    retry_after: str | None
    error: str
    seconds: float


async def send_all(url: str, rate: float, seconds: float) -> tuple[list[Reply], list[Reply]]:
    """Return the replies to the new questions, in the order of their arrival, and those to the exact hits."""
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def send(question: str) -> Reply:
            began, headers = time.perf_counter(), {"content-type": "application/json"}
            try:
                async with session.post(url + PATH, data=body(question), headers=headers) as response:
                    content, status, found = await response.text(), response.status, response.headers
            except (aiohttp.ClientError, OSError) as failure:
                return Reply(0, "", None, repr(failure), time.perf_counter() - began)
            since, error = time.perf_counter() - began, "" if status == 200 else content[:200]
            return Reply(status, found.get("cache-status", ""), found.get("retry-after"), error, since)

        async def arrive(questions: list[str], pause: float) -> list[Reply]:
            start, tasks = time.perf_counter(), list[asyncio.Task[Reply]]()
            for number, question in enumerate(questions):
                await asyncio.sleep(max(0.0, start + number * pause - time.perf_counter()))
                tasks.append(asyncio.create_task(send(question)))
            return await asyncio.gather(*tasks)

        await send("same")
        run, count = time.time_ns(), int(rate * seconds)
        new = [f"How do I repair the printer of case {run + number}?" for number in range(count)]
        same = ["same"] * int(seconds / HIT_SECONDS)
        replies, hits = await asyncio.gather(arrive(new, 1 / rate), arrive(same, HIT_SECONDS))
        return replies, hits


def send_in_turn(url: str, clients: int, seconds: float) -> None:
    """Print the rate of new questions of many clients, and the times of the exact hits of one more client."""
    with ThreadPoolExecutor(1) as threads, httpx.Client(timeout=300) as client:
        questions = threads.submit(wrk, url, clients, seconds, "new", 2)
        times, headers = list[float](), {"content-type": "application/json"}
        while not questions.done():
            began = time.perf_counter()
            client.post(url + PATH, content=body("same"), headers=headers)
            times.append(1e3 * (time.perf_counter() - began))
            time.sleep(HIT_SECONDS)
    p50, p99 = np.percentile(times[1:], (50, 99))
    new = questions.result()
    print(
        f"{clients} clients: {new.rate:.0f} new questions/s, p50 {new.p50:.0f} ms, p99 {new.p99:.0f} ms;"
        f" exact hits p50 {p50:.0f} ms, p99 {p99:.0f} ms"
    )


def milliseconds(replies: list[Reply]) -> str:
    if not replies:
        return "-"
    p50, p99 = np.percentile([1e3 * reply.seconds for reply in replies], (50, 99))
    return f"{p50:.0f}, {p99:.0f}"


def main() -> None:
    options = read_options(__doc__, times=2.0, clients=0, seconds=20.0, flags=["--no-semantic"])
    with (
        constant_upstream() as (upstream, _),
        tempfile.TemporaryDirectory() as folder,
        kvproxy(Path(folder), "--upstream", upstream, *options.flags) as server,
    ):
        wrk(server.url, 64, 2, "new", 0)
        if options.clients:
            send_in_turn(server.url, options.clients, options.seconds)
            return
        capacity = wrk(server.url, 64, 5, "new", 1).rate
        replies, hits = uvloop.run(send_all(server.url, options.times * capacity, options.seconds))
        answered = [reply for reply in replies if reply.status == 200]
        refused = [reply for reply in replies if reply.status == 503 and reply.retry_after is not None]
        third = len(answered) // 3
        errors = Counter(
            f"{reply.status} {reply.error}" for reply in [*replies, *hits] if reply.status not in (200, 503)
        )
        served = [hit for hit in hits if "hit" in hit.cache]
        skipped = sum("skipped" in reply.cache for reply in answered)
        found = [line for line in httpx.get(f"{server.url}/metrics").text.splitlines() if not line.startswith("#")]
        counts = [line for line in found if "lost_records" in line or "skipped" in line]
        print(
            f"capacity {capacity:.0f}/s, {len(replies)} questions at {options.times * capacity:.0f}/s: {len(answered)} answered,"
            f" {len(refused)} refused with Retry-After, {len(replies) - len(answered) - len(refused)} errors,"
            f" {skipped} lookups skipped\n"
            f"ms, p50 and p99: first third {milliseconds(answered[:third])}; last third {milliseconds(answered[-third:])};"
            f" refused {milliseconds(refused)}; exact hits {milliseconds(served)},"
            f" last two thirds {milliseconds(served[len(served) // 3 :])}\n"
            + "\n".join([*counts, *(f"{count} x {error}" for error, count in errors.items())])
        )


if __name__ == "__main__":
    main()
