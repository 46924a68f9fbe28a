"""Durable inserts per second by concurrent writers: one transaction each, and in the batches of the proxy.

python -m tests.benchmarks.writes [--full 5000] [--rounds 3] [--seconds 1.5]
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from kvproxy.index.store import Capacity, NewEntry, SqliteStore
from kvproxy.index.store.group_commit import WriteBatcher
from tests.benchmarks.options import read_options
from tests.benchmarks.timing import median_ratio
from tests.index.entries import make_entry

VECTOR = np.ones(384, np.float32)


def new_entry() -> NewEntry:
    entry = make_entry()
    return NewEntry(make_entry(key=entry.id, id=entry.id, response=b"x" * 1000), VECTOR, "e")


async def rate(write: Callable[[NewEntry], Awaitable[object]], writers: int, seconds: float) -> float:
    """Return the acknowledged inserts per second."""
    began, done = time.perf_counter(), 0

    async def work() -> None:
        nonlocal done
        while time.perf_counter() < began + seconds:
            await write(new_entry())
            done += 1

    await asyncio.gather(*(work() for _ in range(writers)))
    return done / (time.perf_counter() - began)


def measure(batched: bool, writers: int, full: int, seconds: float) -> float:
    """Return the rate in a new store; with `full` entries, each insert evicts another entry."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        store = SqliteStore(Path(folder) / "r.db", capacity=Capacity(entries=full or None))
        for _ in range(0, full, 500):
            store.put_many([new_entry() for _ in range(500)])
        batcher = WriteBatcher(store.put_many)

        async def put(entry: NewEntry) -> object:
            return await (batcher.put(entry) if batched else asyncio.to_thread(store.put_many, [entry]))

        found = asyncio.run(rate(put, writers, seconds))
        store.close()
        return found


def main() -> None:
    options = read_options(__doc__, full=0, rounds=3, seconds=1.5)
    print("| writers | single/s | batched/s | ratio |\n|---|---|---|---|")
    for writers in (1, 8, 64):
        rates: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(options.rounds):
            for batched, found in rates.items():
                found.append(measure(batched, writers, options.full, options.seconds))
        single, batched_rate = map(statistics.median, rates.values())
        print(
            f"| {writers} | {single:.0f} | {batched_rate:.0f} | {median_ratio(rates[True], rates[False]):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
