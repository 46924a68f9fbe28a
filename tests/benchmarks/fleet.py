"""Several proxies on one PostgreSQL: exact hits with shared quotas, and throughput.

python -m tests.benchmarks.fleet [--requests 2000]
python -m tests.benchmarks.fleet --proxies 2 [--seconds 5] [--rounds 5] [--connections 16] [--quota 0.3]

The hits of a client with quotas and of a client without them alternate on one connection.

With `--proxies`, one proxy and several proxies on one port receive exact hits in turn, each proxy on a core of its own. wrk has
16 connections per proxy. PostgreSQL and wrk share these cores on a machine with two, so the throughput there understates that of
a machine with spare cores. If nothing but CPU time limits the proxies, it follows from the CPU time per hit, which includes what
the proxies spend on contention for the port and the store.
"""

import contextlib
import os
import resource
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import psycopg

from kvproxy.clients.client_keys import add_client
from kvproxy.settings import load_settings
from tests.benchmarks.cpu_quota import limit_cpu
from tests.benchmarks.load import wrk
from tests.benchmarks.options import read_options
from tests.benchmarks.servers import cpu_seconds, kvproxy
from tests.benchmarks.timing import median_ratio
from tests.faults.proxies import CHAT, chat, proxy_process
from tests.plain_upstream import run_plain_upstream
from tests.ports import free_port
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


@dataclass(frozen=True)
class Fleet:
    """Proxies on one port."""

    url: str
    processes: list[int]


def start_fleet(stack: contextlib.ExitStack, folder: Path, proxies: int, quota: float, flags: tuple[str, ...]) -> Fleet:
    """Start proxies on one port, each on a core of its own if there are enough, or each with a quota of CPU time."""
    cores, port = sorted(os.sched_getaffinity(0)), str(free_port())
    running = []
    for number in range(proxies):
        (data := folder / f"{proxies}-{number}").mkdir()
        core = None if quota else cores[number % len(cores)]
        running.append(stack.enter_context(kvproxy(data, *flags, core=core, KVPROXY_SHARED_PORT=port)))
        if quota:
            stack.enter_context(limit_cpu(running[-1].process.pid, quota))
    return Fleet(f"http://127.0.0.1:{port}", [server.process.pid for server in running])


def measure_throughput(proxies: int, seconds: float, rounds: int, connections: int, quota: float) -> None:
    """Compare exact hits of one proxy and of several proxies on one port, in turn."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(run_postgres())
        upstream = stack.enter_context(run_plain_upstream())
        flags = ("--upstream", upstream, "--store", server.url, "--no-semantic")
        fleets = {count: start_fleet(stack, folder, count, quota, flags) for count in (1, proxies)}
        rates: dict[int, list[float]] = {count: [] for count in fleets}
        costs: dict[int, list[tuple[float, ...]]] = {count: [] for count in fleets}
        for number in range(rounds + 1):
            for count, fleet in fleets.items():
                before = Usage.read(fleet.processes, server)
                found = wrk(fleet.url, count * connections, seconds, "same", 0)
                after = Usage.read(fleet.processes, server)
                if number:  # The first round warms up.
                    rates[count].append(found.rate)
                    costs[count].append(
                        (
                            (after.proxies - before.proxies) / found.count * 1e3,
                            (after.postgres - before.postgres) / found.count * 1e3,
                            (after.load - before.load) / found.count * 1e3,
                            (after.transactions - before.transactions) / found.count,
                        )
                    )
    print(f"{len(os.sched_getaffinity(0))} cores; CPU ms per hit of")
    print("| proxies | hits/s | proxy | PostgreSQL | wrk | transactions per hit |\n|---|---|---|---|---|---|")
    for count, each in rates.items():
        proxy, postgres, load, transactions = map(statistics.median, zip(*costs[count], strict=True))
        print(
            f"| {count} | {statistics.median(each):,.0f} | {proxy:.2f} | {postgres:.2f} | {load:.2f} | {transactions:.2f} |"
        )
    totals = {count: [sum(cost[:2]) for cost in each] for count, each in costs.items()}
    print(
        f"throughput / {proxies} times the throughput of one proxy: {median_ratio(rates[proxies], rates[1]) / proxies:.2f} here,"
        f" {median_ratio(totals[1], totals[proxies]):.2f} by the CPU time per hit of proxies and PostgreSQL"
    )


def main() -> None:
    options = read_options(__doc__, requests=2_000, proxies=0, seconds=5.0, rounds=5, connections=16, quota=0.0)
    if options.proxies:
        measure_throughput(options.proxies, options.seconds, options.rounds, options.connections, options.quota)
    else:
        measure_hits(options.requests)


if __name__ == "__main__":
    main()
