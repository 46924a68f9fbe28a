"""Gateways beside each other: a fast upstream, asked directly and through nginx, sglang-router and kvproxy, in turn.

Misses ask kvproxy another question each time, with semantic matching as it is by default; hits ask one request again and again.
Load comes from wrk (`apt-get install wrk nginx`); sglang-router is one of PyPI, in an environment of its own.

python -m tests.benchmarks.gateways --router VENV/bin/sglang-router
"""

import argparse
import contextlib
import itertools
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.benchmarks.gateway_servers import constant, nginx, processor_seconds, sglang_router, wrk
from tests.benchmarks.proxy_load import PATH
from tests.benchmarks.proxy_servers import kvproxy

_MOST_REST = 30.0
_EMBED = """
import sys, time
from kvproxy.index.models.embedder import load_embedder
embedder, done = load_embedder(), 0
texts = [f"How do I repair the printer of case {number} in winter?" for number in range(32)]
embedder.embed(texts)
began = time.perf_counter()
while time.perf_counter() < began + float(sys.argv[1]):
    embedder.embed(texts)
    done += 32
print(done / (time.perf_counter() - began))
"""


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked, and how.

    Attributes:
        mode: the questions, see `questions.lua`.
        process: of kvproxy, whose CPU time is told.
    """

    url: str
    mode: str
    process: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One load: requests a second, milliseconds until an answer, of CPU time for a request, and the share that was skipped."""

    rate: float
    p50: float
    p99: float
    cpu: float = 0.0
    skipped: float = 0.0


@contextlib.contextmanager
def targets(router: Path | None, checkout: Path | None, modes: list[str]) -> Iterator[dict[str, Target]]:
    """Everything that is compared, running."""
    with contextlib.ExitStack() as stack:
        direct, passing, keeping = stack.enter_context(nginx())
        found = {"upstream itself": Target(direct, "numbers"), "nginx, passing on": Target(passing, "numbers")}
        if router is not None:
            found["sglang-router"] = Target(stack.enter_context(sglang_router(router, direct)), "numbers")
        for name, code in (("kvproxy", None), *((("before", checkout.resolve()),) if checkout is not None else ())):
            for mode in modes:
                data = stack.enter_context(tempfile.TemporaryDirectory())
                url, process = stack.enter_context(kvproxy(direct, Path(data), code, semantic=True))
                found[f"{name}, {'hits' if mode == 'hit' else f'misses ({mode})'}"] = Target(url, mode, process)
        if "hit" in modes:
            found["nginx, cached"] = Target(keeping, "hit")
            found["constant answer, same server"] = Target(stack.enter_context(constant()), "hit")
        for target in found.values():
            wrk(target.url, 4, 1, target.mode, 1)
        yield found


def ask(target: Target, connections: int, seconds: float, seed: int) -> Seen:
    """One load."""
    before = _cpu(target), *_lookups(target)
    load = wrk(target.url, connections, seconds, target.mode, seed)
    after = _cpu(target), *_lookups(target)
    cpu, skipped, lookups = (late - early for late, early in zip(after, before, strict=True))
    _rest(target)
    return Seen(load.rate, load.p50, load.p99, cpu / load.done * 1e3, skipped / max(lookups, 1))


def _cpu(target: Target) -> float:
    return 0.0 if target.process is None else processor_seconds(target.process)


def _rest(target: Target) -> None:
    """Wait until kvproxy has done what it left for later, so that it takes nothing of the next one's time."""
    end = time.monotonic() + _MOST_REST
    used = _cpu(target)
    while time.monotonic() < end:
        time.sleep(0.5)
        before, used = used, _cpu(target)
        if used - before < 0.03:
            return


def _lookups(target: Target) -> tuple[float, float]:
    """Lookups of similar questions that were skipped, and all."""
    if target.process is None:
        return 0.0, 0.0
    figures = httpx.get(f"{target.url}/metrics").text
    counts = dict(re.findall(r'kvproxy_semantic_lookups_total\{outcome="([^"]+)"\} (\S+)', figures))
    return float(counts.get("skipped", 0)), sum(map(float, counts.values()))


def embedder_rate(seconds: float) -> float:
    """Questions a second that the embedder makes vectors of, 32 at a time, alone."""
    told = subprocess.run([sys.executable, "-c", _EMBED, str(seconds)], capture_output=True, text=True, check=True)
    return float(told.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--router", type=Path, help="the command of sglang-router in an environment of its own")
    parser.add_argument("--against", type=Path, help="another checkout of kvproxy, to be compared with")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--modes", nargs="+", choices=["numbers", "words", "hit"], default=["numbers", "words", "hit"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load")
    chosen = parser.parse_args()
    seeds = itertools.count(1000)
    with targets(chosen.router, chosen.against, chosen.modes) as found:
        print(
            "| connections | | requests/s | p50 ms | p99 ms | CPU ms a request | skipped |\n|---|---|---|---|---|---|---|"
        )
        rates = []
        for connections in chosen.connections:
            seen: dict[str, list[Seen]] = {name: [] for name in found}
            for _ in range(chosen.rounds):
                for name, target in found.items():
                    seen[name].append(ask(target, connections, chosen.seconds, next(seeds)))
                rates.append(embedder_rate(chosen.seconds / 2))
            for name, loads in seen.items():
                rate, p50, p99, cpu, skipped = (
                    statistics.median(getattr(each, field) for each in loads)
                    for field in ("rate", "p50", "p99", "cpu", "skipped")
                )
                print(
                    f"| {connections} | {name} | {rate:,.0f} | {p50:.2f} | {p99:.1f} | {cpu:.2f} | {skipped:.0%} |",
                    flush=True,
                )
        print(f"\nThe embedder alone, 32 at a time: {statistics.median(rates):,.0f} questions a second")
        sample = httpx.post(found["upstream itself"].url + PATH, content=b"{}")
        assert sample.is_success


if __name__ == "__main__":
    main()
