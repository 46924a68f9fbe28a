"""Start time, memory, disk, and rates of a proxy by its number of stored responses.

python -m tests.benchmarks.sizing [--entries 0 1000 100000] [--seconds 3] [--rounds 3]

Three set-ups: in front of an upstream, the same with `--no-semantic`, and with the embedded demo model. Entries have random
vectors in ten namespaces. Hits repeat one request over 8 connections, misses send a new question each time. Each start gets
a copy of the store. Memory is read after the load: all resident memory, and the anonymous part of it.
"""

import shutil
import statistics
import tempfile
import time
from multiprocessing.pool import Pool
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvproxy.index.models.embedder import load_embedder
from kvproxy.index.store import NewEntry, open_store
from tests.benchmarks.load import load, load_process
from tests.benchmarks.options import read_options
from tests.benchmarks.servers import cpu_seconds, kvproxy, run_process
from tests.index.entries import make_entry

_NAMESPACES, _CONNECTIONS, _BATCH = 10, 8, 5_000


class Size(NamedTuple):
    """A proxy under load: seconds and CPU seconds of its start, MiB of memory, and requests per second."""

    ready: float
    cpu: float
    resident: float
    anonymous: float
    hits: float
    misses: float


def fill(path: Path, entries: int) -> None:
    """Create a store of entries with random vectors."""
    store, model, generator = open_store(path), load_embedder(), np.random.default_rng(0)
    for start in range(0, entries, _BATCH):
        count = min(_BATCH, entries - start)
        vectors = generator.normal(size=(count, model.dim)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        numbers = range(start, start + count)
        made = [make_entry(f"question {number}", namespace=f"n{number % _NAMESPACES}") for number in numbers]
        store.put_many([NewEntry(entry, vector, model.name) for entry, vector in zip(made, vectors, strict=True)])
    store.close()


def measure(pool: Pool, data: Path, flags: list[str], seconds: float) -> Size:
    """Start a proxy, load it, and stop it."""
    began = time.perf_counter()
    with kvproxy(data, *flags) as server:
        ready, cpu = time.perf_counter() - began, cpu_seconds(server.process.pid)
        pool.apply(load, (server.url, 1, 0.2))
        hits, misses = (
            pool.apply(load, (server.url, _CONNECTIONS, seconds, questions)).rate for questions in ("same", "new")
        )
        return Size(ready, cpu, *memory(server.process.pid), hits, misses)


def memory(process: int) -> tuple[float, float]:
    """Return the resident and anonymous MiB of a process."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes["VmRSS"].split()[0]) / 1024, int(sizes["RssAnon"].split()[0]) / 1024


def main() -> None:
    options = read_options(__doc__, entries=[0, 1_000, 100_000], seconds=3.0, rounds=3)
    with load_process() as pool, run_process() as upstream, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        setups = {
            "upstream": ["--upstream", upstream],
            "upstream, --no-semantic": ["--upstream", upstream, "--no-semantic"],
            "embedded demo": ["--num-blocks", "1024"],
        }
        for entries in options.entries:
            (folder / str(entries)).mkdir()
            fill(folder / str(entries) / "responses.db", entries)
            measure(pool, folder / str(entries), setups["upstream"], 0.1)  # Writes the files of a first start.
        print(
            "| set-up | entries | disk, MiB | ready, s | CPU, s | resident, MiB | anonymous, MiB | hits/s | misses/s |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for setup, flags in setups.items():
            for entries in options.entries:
                found = []
                for _ in range(options.rounds):
                    with tempfile.TemporaryDirectory() as copy:
                        data = shutil.copytree(folder / str(entries), Path(copy) / "data")
                        found.append(measure(pool, data, flags, options.seconds))
                files = [file for file in (folder / str(entries)).rglob("*") if file.is_file()]
                disk = sum(file.stat().st_size for file in files) / 2**20
                size = Size(*map(statistics.median, zip(*found, strict=True)))
                print(
                    f"| {setup} | {entries:,} | {disk:,.0f} | {size.ready:.1f} | {size.cpu:.2f} | {size.resident:,.0f}"
                    f" | {size.anonymous:,.0f} | {size.hits:,.0f} | {size.misses:,.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
