"""Rates of kvproxy in front of a fast upstream, with new and with repeated questions, beside a constant response.

python -m tests.benchmarks.wrk_rates

The load comes from wrk (`apt-get install wrk nginx`). kvproxy runs with its default settings, so that it looks for similar
questions.
"""

import contextlib
import itertools
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.benchmarks.load import Questions, wrk
from tests.benchmarks.options import read_options
from tests.benchmarks.servers import cpu_seconds, kvproxy, nginx, run_process


class Target(NamedTuple):
    """A server to measure; `process` is that of a kvproxy."""

    url: str
    questions: Questions
    process: int | None = None


class Result(NamedTuple):
    """Requests per second, latencies and CPU time per request in milliseconds, and the share of skipped lookups."""

    rate: float
    p50: float
    p99: float
    cpu: float
    skipped: float


def measure(target: Target, connections: int, seconds: float, seed: int) -> Result:
    """Load one server, then wait until it is idle."""
    before = counters(target)
    found = wrk(target.url, connections, seconds, target.questions, seed)
    cpu, skipped, lookups = (after - earlier for after, earlier in zip(counters(target), before, strict=True))
    if target.process is not None:
        used, end = -1.0, time.monotonic() + 30
        while time.monotonic() < end and cpu_seconds(target.process) - used > 0.03:
            used = cpu_seconds(target.process)
            time.sleep(0.5)
    return Result(found.rate, found.p50, found.p99, cpu / found.count * 1e3, skipped / max(lookups, 1))


def counters(target: Target) -> tuple[float, float, float]:
    """Return the CPU seconds of a proxy, its skipped semantic lookups, and all of them."""
    if target.process is None:
        return 0.0, 0.0, 0.0
    metrics = httpx.get(f"{target.url}/metrics").text
    counts = dict(re.findall(r'kvproxy_semantic_lookups_total\{outcome="([^"]+)"\} (\S+)', metrics))
    return cpu_seconds(target.process), float(counts.get("skipped", 0)), sum(map(float, counts.values()))


def main() -> None:
    options = read_options(__doc__, connections=[1, 16, 64], rounds=3, seconds=4.0)
    seeds = itertools.count(1000)
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(nginx())
        targets = {"constant response": Target(stack.enter_context(run_process()), "same")}
        for name, questions in (("kvproxy, new questions", "new"), ("kvproxy, exact hits", "same")):
            data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            server = stack.enter_context(kvproxy(data, "--upstream", upstream))
            targets[name] = Target(server.url, questions, server.process.pid)
        for target in targets.values():
            wrk(target.url, 4, 1, target.questions, 1)
        print("| connections | | requests/s | p50 ms | p99 ms | CPU ms per request | lookups skipped |")
        print("|---|---|---|---|---|---|---|")
        for connections in options.connections:
            results: dict[str, list[Result]] = {name: [] for name in targets}
            for _ in range(options.rounds):
                for name, target in targets.items():
                    results[name].append(measure(target, connections, options.seconds, next(seeds)))
            for name, found in results.items():
                rate, p50, p99, cpu, skipped = map(statistics.median, zip(*found, strict=True))
                print(
                    f"| {connections} | {name} | {rate:,.0f} | {p50:.2f} | {p99:.1f} | {cpu:.2f} | {skipped:.0%} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
