"""Several proxies on one PostgreSQL: exact hits with shared quotas, and throughput.

python -m tests.benchmarks.fleet [--requests 2000]
python -m tests.benchmarks.fleet --proxies 2 [--seconds 5] [--rounds 5] [--connections 16]

The hits of a client with quotas and of a client without them alternate on one connection.

With `--proxies`, each proxy runs on a core of its own and receives exact hits from its own wrk. PostgreSQL and wrk share these
cores on a machine with two. The ratio with spare cores follows from the CPU time per request of the proxies.
"""

import contextlib
import os
import resource
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import psycopg

from kvproxy.clients.client_keys import add_client
from kvproxy.settings import load_settings
from tests.benchmarks.load import wrk
from tests.benchmarks.options import read_options
from tests.benchmarks.servers import cpu_seconds, kvproxy
from tests.faults.proxies import CHAT, chat, proxy_process
from tests.plain_upstream import run_plain_upstream
from tests.postgres_server import PostgresServer, run_postgres


def measure_hits(requests: int) -> None:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = stack.enter_context(run_postgres()).url
        settings = load_settings(data=folder / "operator", store=store)
        limits = {"none": {}, "shared": {"requests_per_minute": 10**6, "tokens_per_minute": 10**8}}
        keys = {name: add_client(settings, name, **each) for name, each in limits.items()}
        upstream = stack.enter_context(run_plain_upstream())
        flags = ("--store", store, "--no-semantic")
        proxy = stack.enter_context(proxy_process(upstream, folder / "data", folder / "log", *flags))
        client = stack.enter_context(httpx.Client(timeout=60))
        times: dict[str, list[float]] = {name: [] for name in keys}
        for number in range(requests + 20):
            for name, key in keys.items():
                began = time.perf_counter()
                client.post(proxy.url + CHAT, json=chat("Hi"), headers={"authorization": f"Bearer {key}"})
                if number >= 20:
                    times[name].append((time.perf_counter() - began) * 1e3)
        print("| exact hits of a client with | p50, ms | p99, ms |\n|---|---|---|")
        for name, title in (("none", "no quota"), ("shared", "shared quotas")):
            p50, p99 = np.percentile(times[name], (50, 99))
            print(f"| {title} | {p50:.2f} | {p99:.2f} |")


@dataclass(frozen=True)
class Usage:
    """CPU seconds of the proxies, PostgreSQL, and the load generator, and the number of transactions."""

    proxies: float
    postgres: float
    load: float
    transactions: int

    @staticmethod
    def read(proxies: list[int], server: PostgresServer) -> "Usage":
        # Sessions report their counts when they are idle, at most once a second.
        time.sleep(1.5)
        with psycopg.connect(server.url) as connection:
            row = connection.execute(
                "select xact_commit from pg_stat_database where datname = current_database()"
            ).fetchone()
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        load = ended.ru_utime + ended.ru_stime
        assert row is not None
        postgres = cpu_seconds(server.process, children=True)
        return Usage(sum(map(cpu_seconds, proxies)), postgres, load, row[0])


def measure_throughput(proxies: int, seconds: float, rounds: int, connections: int) -> None:
    """Compare exact hits of one proxy and of several proxies, in turn."""
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(run_postgres())
        upstream = stack.enter_context(run_plain_upstream())
        running = []
        for number in range(proxies):
            flags = ("--upstream", upstream, "--store", server.url, "--no-semantic")
            (data := folder / str(number)).mkdir()
            running.append(stack.enter_context(kvproxy(data, *flags, core=cores[number % len(cores)])))
        threads = stack.enter_context(ThreadPoolExecutor(proxies))
        rates: dict[int, list[float]] = {1: [], proxies: []}
        costs: dict[int, list[tuple[float, ...]]] = {1: [], proxies: []}
        for number in range(rounds + 1):
            for count in rates:
                ids, urls = [each.process.pid for each in running[:count]], [each.url for each in running[:count]]
                before = Usage.read(ids, server)
                found = list(threads.map(lambda url: wrk(url, connections, seconds, "same", 0), urls))
                after, requests = Usage.read(ids, server), sum(each.count for each in found)
                if number:  # The first round warms up.
                    rates[count].append(sum(each.rate for each in found))
                    costs[count].append(
                        (
                            (after.proxies - before.proxies) / requests * 1e3,
                            (after.postgres - before.postgres) / requests * 1e3,
                            (after.load - before.load) / requests * 1e3,
                            (after.transactions - before.transactions) / requests,
                        )
                    )
    print(f"{len(cores)} cores; CPU ms per request of")
    print("| proxies | hits/s | proxy | PostgreSQL | wrk | transactions per request |\n|---|---|---|---|---|---|")
    for count, each in rates.items():
        proxy, postgres, load, transactions = (statistics.median(column) for column in zip(*costs[count], strict=True))
        print(
            f"| {count} | {statistics.median(each):,.0f} | {proxy:.2f} | {postgres:.2f} | {load:.2f} | {transactions:.2f} |"
        )
    ratio = statistics.median(several / one for one, several in zip(rates[1], rates[proxies], strict=True))
    spare = proxies * statistics.median(
        one[0] / several[0] for one, several in zip(costs[1], costs[proxies], strict=True)
    )
    print(f"ratio of the throughput: {ratio:.2f} here, {spare:.2f} from the proxies' CPU time")


def main() -> None:
    options = read_options(__doc__, requests=2_000, proxies=0, seconds=5.0, rounds=5, connections=16)
    if options.proxies:
        measure_throughput(options.proxies, options.seconds, options.rounds, options.connections)
    else:
        measure_hits(options.requests)


if __name__ == "__main__":
    main()
