"""Several proxies on one PostgreSQL: latency of exact hits with shared quotas, and routing without communication.

python -m tests.benchmarks.fleet [--requests 2000]

The hits of a client with quotas and of a client without them alternate on one connection. The routing of conversations to four
engines is simulated: each request goes to a random proxy, which knows the caches by events, but only the load of its own
requests.
"""

import contextlib
import random
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np

from kvproxy.client_keys import add_client
from kvproxy.offline.simulate.pool_simulation import Arrival, ChainRequest
from kvproxy.offline.simulate.routing_simulation import FleetShape, SimulatedEngine
from kvproxy.settings import load_settings
from kvproxy.upstreams.routing import EngineCandidate, Load, Ring, rank_engines
from tests.benchmarks.options import read_options
from tests.faults.proxies import CHAT, chat, proxy_process
from tests.plain_upstream import run_plain_upstream
from tests.postgres_server import run_postgres

TURNS, CONVERSATIONS, SECONDS, BLOCK = 8, 1_200, 600.0, 512
SHAPE = FleetShape(engines=4, blocks=1_000, block_tokens=BLOCK, prefill_rate=2_500, event_delay=0.1)


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


def conversations() -> list[Arrival]:
    """Return conversations with one of ten system prompts, whose turns have 512 tokens and follow after about 20 seconds."""
    generator, found = random.Random(0), []
    for number in range(CONVERSATIONS):
        seconds, system = generator.uniform(0, SECONDS), generator.randrange(10)
        for turn in range(1, TURNS + 1):
            blocks = (-2 * system - 1, -2 * system - 2, *(number * TURNS + each for each in range(turn)))
            found.append(Arrival(seconds, ChainRequest(blocks, turn + 2, partial=True), BLOCK * (turn + 2) + 1, 100))
            seconds += generator.expovariate(1 / 20)
    return sorted(found, key=lambda arrival: arrival.seconds)


def route(arrivals: list[Arrival], proxies: int) -> tuple[float, float]:
    """Return the hit rate and the median wait in seconds, if a number of proxies route the requests."""
    engines = [SimulatedEngine(str(number), SHAPE) for number in range(SHAPE.engines)]
    loads = [[Load() for _ in engines] for _ in range(proxies)]
    ring, generator = Ring({engine.name: 1.0 for engine in engines}), random.Random(0)
    for arrival in arrivals:
        own = generator.choice(loads)
        for engine, engine.load in zip(engines, own, strict=True):
            engine.advance(arrival.seconds)
        candidates = [
            EngineCandidate(engine.name, engine.matched_tokens(arrival), engine.load.tokens) for engine in engines
        ]
        order = ring.order(repr(arrival.chain.blocks[:2]).encode())
        engines[int(rank_engines(candidates, arrival.tokens, order)[0])].add(arrival)
    for engine in engines:
        engine.advance(float("inf"))
    hits, computed = sum(engine.hits for engine in engines), sum(engine.computed for engine in engines)
    return hits / (hits + computed), float(np.median([wait for engine in engines for wait in engine.waits]))


def main() -> None:
    options = read_options(__doc__, requests=2_000)
    measure_hits(options.requests)
    print("\n| proxies | hit rate | median wait, s |\n|---|---|---|")
    arrivals = conversations()
    for proxies in (1, 3, 10):
        rate, wait = route(arrivals, proxies)
        print(f"| {proxies} | {rate:.3f} | {wait:.2f} |")


if __name__ == "__main__":
    main()
