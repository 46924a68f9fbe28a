"""Durable inserts a second, by writers at once: each with a transaction of its own, and together as the proxy writes them.

python -m tests.benchmarks.writes [--full 5000 | --shared 100000]
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from kvproxy.index.store import Capacity, NewEntry, SqliteStore
from kvproxy.index.store.write_batcher import WriteBatcher
from tests.index.entries import make_entry

SECONDS = 1.5
ROUNDS = 3
VECTOR = np.ones(384, np.float32)


def put() -> NewEntry:
    """Another entry."""
    entry = make_entry()
    return NewEntry(make_entry(key=entry.id, id=entry.id, response=b"x" * 1000), VECTOR, "e")


async def rate(write: Callable[[NewEntry], Awaitable[object]], writers: int) -> float:
    """Acknowledged inserts a second."""
    end = time.perf_counter() + SECONDS
    done = 0

    async def work() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await write(put())
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(writers)))
    return done / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", type=int, help="entries of a store that is full, so that others must go for each")
    parser.add_argument("--shared", type=int, help="entries of a tenant with a share, who has room for more")
    chosen = parser.parse_args()
    capacity = Capacity(entries=chosen.full, of_tenant=None if chosen.shared is None else lambda tenant: 2**40)
    print(f"{'writers':>8} {'alone/s':>10} {'together/s':>11} {'ratio':>7}")
    for writers in (1, 8, 64):
        rates: dict[str, list[float]] = {"alone": [], "together": []}
        for _ in range(ROUNDS):
            for name, seen in rates.items():
                with tempfile.TemporaryDirectory(dir=".") as folder:
                    store = SqliteStore(Path(folder) / "r.db", capacity=capacity)
                    for _ in range(0, chosen.full or chosen.shared or 0, 500):
                        store.put_many([put() for _ in range(500)])
                    batcher = WriteBatcher(store.put_many)

                    async def alone(put: NewEntry, store: SqliteStore = store) -> object:
                        return await asyncio.to_thread(store.put_many, [put])

                    seen.append(asyncio.run(rate(alone if name == "alone" else batcher.put, writers)))
                    store.close()
        one, all_ = (statistics.median(seen) for seen in rates.values())
        ratio = statistics.median(b / a for a, b in zip(*rates.values(), strict=True))
        print(f"{writers:8} {one:10.0f} {all_:11.0f} {ratio:7.2f}")


if __name__ == "__main__":
    main()
