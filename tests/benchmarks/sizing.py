"""How much memory and disk a proxy takes by its number of stored responses, and how fast it answers from them.

python -m tests.benchmarks.sizing [--entries 1000 100000] [--seconds 3] [--rounds 3]

In front of an upstream (the light install: torch is never loaded) and with the embedded demo model (with torch). Entries have
random vectors, in ten namespaces of one tenant. Hits are one equal request over 8 connections, misses another question each
time, whose answer is stored. Rates are medians of all rounds, with the median of their ratios to the first row of the same round:
the load shares the machine, so that the ratios say more. Each proxy gets a copy of the store,
without what misses added before.
Memory is read at the end of the load: all that is resident, and the part of it that is the process's own.
"""

import argparse
import http.client
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.store import SqliteStore
from tests.benchmarks.filling import fill as filled
from tests.benchmarks.start import PATIENCE, answers, memory
from tests.plain_upstream import run_plain_upstream
from tests.ports import free_port

_NAMESPACES = 10
_CONNECTIONS = 8


@dataclass(frozen=True, slots=True)
class Size:
    """One proxy under load.

    Attributes:
        ready: seconds until it answered.
        hits, misses: requests a second.
        resident, anonymous: MiB at the end.
    """

    ready: float
    hits: float
    misses: float
    resident: float
    anonymous: float


def fill(path: Path, entries: int) -> None:
    """Make a store."""
    store = SqliteStore(path)
    for _ in filled(store, load_embedder(), entries, _NAMESPACES):
        pass
    store.close()


def measured(data: Path, flags: list[str], model: str, seconds: float) -> Size:
    """Start a proxy on a copy of a data folder, load it, and end it."""
    with tempfile.TemporaryDirectory(dir=data.parent) as folder:
        return loaded(shutil.copytree(data, Path(folder) / "data"), flags, model, seconds)


def loaded(data: Path, flags: list[str], model: str, seconds: float) -> Size:
    """Start a proxy on a data folder, load it, and end it."""
    port = free_port()
    command = [sys.executable, "-m", "kvproxy.commands", "serve", "--port", str(port), "--data", str(data), *flags]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    try:
        while not answers(port):
            if process.poll() is not None or time.perf_counter() - began > PATIENCE:
                raise SystemExit(f"a proxy did not start with {flags}")
            time.sleep(0.02)
        ready, number = time.perf_counter() - began, itertools.count(time.time_ns())
        rate(port, model, 0.5, lambda: "What is a block?")
        hits = rate(port, model, seconds, lambda: "What is a block?")
        misses = rate(port, model, seconds, lambda: f"What became of case {next(number)}?")
        return Size(ready, hits, misses, *memory(process.pid))
    finally:
        process.terminate()
        process.wait()


def rate(port: int, model: str, seconds: float, question: Callable[[], str]) -> float:
    """Requests a second over some connections."""
    end, counts = time.perf_counter() + seconds, [0] * _CONNECTIONS

    def ask(place: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.perf_counter() < end:
            messages = [{"role": "user", "content": question()}]
            body = json.dumps({"model": model, "temperature": 0, "max_tokens": 16, "messages": messages})
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            connection.getresponse().read()
            counts[place] += 1

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with run_plain_upstream() as upstream, tempfile.TemporaryDirectory() as folder:
        kinds = {
            "upstream": (["--upstream", upstream], "plain"),
            "embedded demo": (["--num-blocks", "1024"], "demo"),
        }
        disk = {}
        for entries in options.entries:
            data = Path(folder) / str(entries)
            data.mkdir()
            fill(data / "responses.db", entries)
            loaded(data, *kinds["upstream"], 0.2)  # Builds what a first start builds.
            disk[entries] = sum(file.stat().st_size for file in data.rglob("*") if file.is_file()) / 2**20
        found: dict[tuple[str, int], list[Size]] = {(kind, n): [] for kind in kinds for n in options.entries}
        for _ in range(options.rounds):
            for kind, entries in found:
                found[kind, entries].append(measured(Path(folder) / str(entries), *kinds[kind], options.seconds))
        show(found, disk)


def ratios(sizes: list[Size], base: list[Size]) -> Iterator[tuple[str, float]]:
    """How much faster hits and misses were than others of the same round."""
    for name in ("hits", "misses"):
        yield (
            name,
            statistics.median(
                getattr(one, name) / getattr(other, name) for one, other in zip(sizes, base, strict=True)
            ),
        )


def show(found: dict[tuple[str, int], list[Size]], disk: dict[int, float]) -> None:
    """A row of medians for each kind and number of entries."""
    print("| | entries | on disk, MiB | resident, MiB | its own, MiB | ready, s | hits a second | misses a second |")
    print("|---|" + "---|" * 7)
    first = next(iter(found.values()))
    for (kind, entries), sizes in found.items():
        resident, own, ready = (
            statistics.median(getattr(each, name) for each in sizes) for name in ("resident", "anonymous", "ready")
        )
        rates = (
            f"{statistics.median(getattr(each, name) for each in sizes):,.0f} ({ratio:.2f})"
            for name, ratio in ratios(sizes, first)
        )
        cells = (f"{disk[entries]:,.0f}", f"{resident:,.0f}", f"{own:,.0f}", f"{ready:.1f}", *rates)
        print(f"| {kind} | {entries:,} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
