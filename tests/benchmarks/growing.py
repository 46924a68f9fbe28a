"""What lookups and the event loop wait for while a large namespace takes inserts, and while its graph is built anew and kept.

python -m tests.benchmarks.growing [--entries 1000000] [--inserts 200] [--seconds 15] [--folder FOLDER]

The store is that of `lookup`; what is inserted is removed at the end. Vectors are given, so that no embedding is in the times.
A sleeper that should wake every millisecond tells how long the event loop was not free.
"""

import argparse
import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np

from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.neighbours import FaissNeighbours
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import SqliteStore
from tests.benchmarks.many import DIM, EMBEDDER, FOLDER, NAMESPACE, Questions, prepare
from tests.index.entries import make_entry

TEXTS = 50_000


class Known:
    """An embedder whose texts are the places of their vectors."""

    name = EMBEDDER
    dim = DIM
    vocabulary = None

    def __init__(self, vectors: np.ndarray) -> None:
        self._vectors = vectors

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return self._vectors[[int(text) for text in texts]]

    def reads(self, text: str) -> bool:
        return True


class Growing:
    """A semantic cache over a store that is there."""

    def __init__(self, folder: Path, entries: int) -> None:
        self.store = SqliteStore(prepare(folder, entries))
        vectors = Questions(folder, entries + 2).rows(TEXTS)
        self.semantic = SemanticCache(self.store, Known(vectors), ThresholdPolicy(0.95))
        self.semantic.rebuild()
        self.near = self.semantic._neighbours
        self.inserted: list[str] = []
        self._texts = itertools.cycle(map(str, range(TEXTS)))

    async def lookups(self, times: list[float], end: Callable[[], bool]) -> None:
        while not end():
            began = time.perf_counter()
            await self.semantic.lookup(NAMESPACE, next(self._texts))
            times.append(time.perf_counter() - began)

    async def inserts(self, rate: float, end: Callable[[], bool]) -> None:
        began = time.perf_counter()
        for number in itertools.count():
            if end():
                return
            entry = make_entry(next(self._texts), key=f"grown {time.time_ns()}")
            await self.semantic.insert(entry)
            self.inserted.append(entry.id)
            await asyncio.sleep(max(0.0, began + (number + 1) / rate - time.perf_counter()))

    async def built_anew(self) -> None:
        """As after many removals: a new graph, kept in its file."""
        near = self.near
        assert isinstance(near, FaissNeighbours)
        index = near.indexes[NAMESPACE]

        def work() -> None:
            index.rebuild(lambda after: near._stored(NAMESPACE, after))
            assert index.graph is not None
            near._captured.save(NAMESPACE, index.graph)

        await asyncio.wrap_future(near._background.submit(work))


async def sleeper(late: list[float], end: Callable[[], bool]) -> None:
    while not end():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append(time.perf_counter() - began - 0.001)


async def phase(title: str, growing: Growing, work: Callable[[Callable[[], bool]], Awaitable[None]]) -> None:
    """Lookups one after the other for as long as some work takes."""
    done = False
    times: list[float] = []
    late: list[float] = []
    others = [
        asyncio.create_task(growing.lookups(times, lambda: done)),
        asyncio.create_task(sleeper(late, lambda: done)),
    ]
    began, before = time.perf_counter(), len(growing.inserted)
    await work(lambda: done)
    took = time.perf_counter() - began
    done = True
    await asyncio.gather(*others)
    lookup, loop = (np.percentile(seen, (50, 99, 100)) * 1e3 for seen in (times, late))
    print(
        f"{title:24} {took:7.1f} s {len(times) / took:8.0f} lookups/s {(len(growing.inserted) - before) / took:6.0f} inserts/s"
        f"   lookup p50 {lookup[0]:7.2f} p99 {lookup[1]:7.2f} most {lookup[2]:8.2f} ms"
        f"   loop late p50 {loop[0]:6.2f} p99 {loop[1]:6.2f} most {loop[2]:7.2f} ms",
        flush=True,
    )


async def measure(growing: Growing, rate: float, seconds: float) -> None:
    async def wait(end: Callable[[], bool]) -> None:
        await asyncio.sleep(seconds)

    async def insert(end: Callable[[], bool]) -> None:
        stop = time.perf_counter() + seconds
        await growing.inserts(rate, lambda: time.perf_counter() > stop)

    async def rebuild(end: Callable[[], bool]) -> None:
        await growing.built_anew()

    await phase("lookups alone", growing, wait)
    await phase("with inserts and merges", growing, insert)
    await phase("with a rebuild and save", growing, rebuild)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--inserts", type=float, default=200.0, help="a second")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the stores are kept")
    arguments = parser.parse_args()
    growing = Growing(arguments.folder, arguments.entries)
    asyncio.run(measure(growing, arguments.inserts, arguments.seconds))
    growing.store.delete(growing.inserted)
    growing.semantic.close()
    growing.store.close()


if __name__ == "__main__":
    main()
