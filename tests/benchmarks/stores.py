"""PostgreSQL against SQLite in one run, in turn: exact hits, lookups of similar questions, durable writes, removals by tag.

python -m tests.benchmarks.stores [--entries 10000] [--rounds 3] [--folder FOLDER] [--url postgresql://..]

Without a URL a server is started in a folder of its own: on the same machine and cores, over a socket, durable, with the
settings that it comes with. Vectors are given, and one namespace holds all entries.
"""

import argparse
import asyncio
import contextlib
import itertools
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np

from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import EntryFilter, NewEntry, SqliteStore, Store, open_store
from kvproxy.index.store.opening import open_observations
from tests.benchmarks.growing import Known
from tests.benchmarks.many import EMBEDDER, FOLDER, NAMESPACE, Questions
from tests.index.entries import make_entry

SECONDS = 2.0
WRITERS = 16
_BATCH = 1_000
Work = Callable[[int], Awaitable[object]]


class Side:
    """One store with a semantic cache over it, filled."""

    def __init__(self, store: Store, where: str, entries: int, vectors: np.ndarray) -> None:
        self.store = store
        self.keys: list[str] = []
        self._texts = itertools.cycle(map(str, range(entries)))
        observations = open_observations(where)
        for start in range(0, entries, _BATCH):
            made = [
                make_entry(str(number), response=b'"' + b"x" * 1000 + b'"') for number in range(start, start + _BATCH)
            ]
            puts = [NewEntry(entry, vectors[int(entry.prompt)], EMBEDDER) for entry in made]
            store.put_many(puts)
            self.keys += [entry.key for entry in made]
        self.semantic = SemanticCache(store, Known(vectors), ThresholdPolicy(0.95, guards=()), observations)
        self.semantic.rebuild()
        self.semantic.maintain()

    async def exact(self, number: int) -> None:
        key = self.keys[number * 7919 % len(self.keys)]
        # As `ResponseCache.find` does: a file is asked from the event loop itself.
        found = await asyncio.to_thread(self.store.find, key) if self.store.remote else self.store.find(key)
        assert found is not None

    async def similar(self, number: int) -> None:
        assert (await self.semantic.lookup(NAMESPACE, next(self._texts))).candidates

    async def write(self, number: int) -> None:
        entry = make_entry(next(self._texts), key=f"written {time.time_ns()} {number}", tags=("written",))
        assert await self.semantic.insert(entry)

    async def remove(self) -> tuple[int, float]:
        """Entries that were written, and the seconds that it took to remove them by their tag."""
        began = time.perf_counter()
        ids = await asyncio.to_thread(self.store.ids, EntryFilter(tag="written"))
        count = len(await asyncio.to_thread(self.store.delete, ids))
        return count, time.perf_counter() - began


async def rate(work: Work, workers: int) -> tuple[float, float]:
    """How often a second, and the median milliseconds."""
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    numbers = itertools.count()

    async def go() -> None:
        while time.perf_counter() < end:
            began = time.perf_counter()
            await work(next(numbers))
            times.append(time.perf_counter() - began)

    await asyncio.gather(*(go() for _ in range(workers)))
    return len(times) / SECONDS, float(np.median(times)) * 1e3


async def measure(sides: dict[str, Side], rounds: int) -> None:
    rows: dict[tuple[str, int], dict[str, list[tuple[float, float]]]] = {}
    for _ in range(rounds):
        for what, workers in (
            ("exact", 1),
            ("exact", 16),
            ("similar", 1),
            ("similar", 16),
            ("write", 1),
            ("write", WRITERS),
        ):
            for name, side in sides.items():
                seen = rows.setdefault((what, workers), {each: [] for each in sides})
                seen[name].append(await rate(getattr(side, what), workers))
        for name, side in sides.items():
            count, took = await side.remove()
            seen = rows.setdefault(("remove", 1), {each: [] for each in sides})
            seen[name].append((count / took, took * 1e3 / count))
    print(f"{'':10} {'at once':>8} {'SQLite/s':>10} {'ms':>8} {'PostgreSQL/s':>13} {'ms':>8} {'ratio of rates':>15}")
    for (what, workers), seen in rows.items():
        (lite, lite_ms), (server, server_ms) = (np.median(values, axis=0) for values in seen.values())
        ratio = float(np.median([theirs[0] / ours[0] for ours, theirs in zip(*seen.values(), strict=True)]))
        print(
            f"{what:10} {workers:8} {lite:10.0f} {lite_ms:8.3f} {server:13.0f} {server_ms:8.3f} {ratio:15.2f}",
            flush=True,
        )


@contextlib.contextmanager
def server(url: str | None) -> Iterator[str]:
    """A URL of a server without a store."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="pg") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pgserver

        started = pgserver.get_server(folder, cleanup_mode="stop")
        try:
            yield started.get_uri()
        finally:
            started.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the vectors of questions are kept")
    parser.add_argument("--url", help="a server whose schema kvproxy may be filled")
    arguments = parser.parse_args()
    vectors = Questions(arguments.folder, arguments.entries).rows(arguments.entries)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, server(arguments.url) as url:
        path = Path(folder) / "responses.db"
        sides = {
            "sqlite": Side(SqliteStore(path), str(path), arguments.entries, vectors),
            "postgres": Side(open_store(url), url, arguments.entries, vectors),
        }
        asyncio.run(measure(sides, arguments.rounds))
        for side in sides.values():
            side.semantic.close()
            side.store.close()


if __name__ == "__main__":
    main()
