"""PostgreSQL beside SQLite, in turn: exact hits, semantic lookups, and durable writes.

python -m tests.benchmarks.stores [--entries 10000] [--rounds 3] [--seconds 2] [--folder FOLDER] [--url postgresql://..]

Without a URL, a PostgreSQL server with its default settings is started on this machine. Vectors are precomputed, and one
namespace contains all entries.
"""

import argparse
import asyncio
import contextlib
import itertools
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import NewEntry, SqliteStore, Store, open_store
from kvproxy.index.store.opening import open_observations
from tests.benchmarks.stored_questions import DIM, EMBEDDER, FOLDER, NAMESPACE, QuestionVectors
from tests.benchmarks.timing import median_ratio
from tests.index.entries import make_entry

_BATCH = 1_000
Work = Callable[[int], Awaitable[object]]


class PrecomputedEmbedder:
    """An embedder whose texts are the row numbers of their vectors."""

    name, dim, vocabulary = EMBEDDER, DIM, None

    def __init__(self, vectors: np.ndarray) -> None:
        self._vectors = vectors

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return self._vectors[[int(text) for text in texts]]

    def reads(self, text: str) -> bool:
        return True


class FilledStore:
    """A store of entries, with a semantic cache over it."""

    def __init__(self, store: Store, url: str, entries: int, vectors: np.ndarray) -> None:
        self.store = store
        self.keys: list[str] = []
        self._texts = itertools.cycle(map(str, range(entries)))
        for start in range(0, entries, _BATCH):
            numbers = range(start, min(entries, start + _BATCH))
            made = [make_entry(str(number), response=b'"' + b"x" * 1000 + b'"') for number in numbers]
            store.put_many([NewEntry(entry, vectors[int(entry.prompt)], EMBEDDER) for entry in made])
            self.keys += [entry.key for entry in made]
        policy, observations = ThresholdPolicy(0.95, guards=()), open_observations(url)
        self.semantic = SemanticCache(store, PrecomputedEmbedder(vectors), policy, observations)
        self.semantic.rebuild()
        self.semantic.maintain()

    async def exact(self, number: int) -> None:
        key = self.keys[number * 7919 % len(self.keys)]
        # The event loop reads a SQLite file itself, as `ResponseCache.find` does.
        found = await asyncio.to_thread(self.store.find, key) if self.store.remote else self.store.find(key)
        assert found is not None

    async def similar(self, number: int) -> None:
        assert (await self.semantic.lookup(NAMESPACE, next(self._texts))).candidates

    async def write(self, number: int) -> None:
        assert await self.semantic.insert(make_entry(next(self._texts), key=f"written {time.time_ns()} {number}"))


async def rate(work: Work, workers: int, seconds: float) -> tuple[float, float]:
    """Return the calls per second, and the median latency in milliseconds."""
    times, end, numbers = list[float](), time.perf_counter() + seconds, itertools.count()

    async def run() -> None:
        while time.perf_counter() < end:
            began = time.perf_counter()
            await work(next(numbers))
            times.append(time.perf_counter() - began)

    await asyncio.gather(*(run() for _ in range(workers)))
    return len(times) / seconds, float(np.median(times)) * 1e3


async def measure(stores: dict[str, FilledStore], rounds: int, seconds: float) -> None:
    print(
        f"| | clients | {' | '.join(f'{name}/s | ms' for name in stores)} | ratio of rates |\n|---|---|---|---|---|---|---|"
    )
    for operation, workers in itertools.product(("exact", "similar", "write"), (1, 16)):
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in stores}
        for _ in range(rounds):
            for name, store in stores.items():
                found[name].append(await rate(getattr(store, operation), workers, seconds))
        cells = (
            f"{speed:,.0f} | {latency:.3f}" for speed, latency in (np.median(each, axis=0) for each in found.values())
        )
        sqlite, postgres = ([speed for speed, _ in values] for values in found.values())
        print(f"| {operation} | {workers} | {' | '.join(cells)} | {median_ratio(postgres, sqlite):.2f} |", flush=True)


@contextlib.contextmanager
def postgres(url: str | None) -> Iterator[str]:
    """Yield the URL of a server without a store."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="pg") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pgserver

        server = pgserver.get_server(folder, cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the vectors")
    parser.add_argument("--url", help="of a server; the benchmark fills its schema kvproxy")
    options = parser.parse_args()
    vectors = QuestionVectors(options.folder, options.entries).rows(options.entries)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, postgres(options.url) as url:
        path = Path(folder) / "responses.db"
        stores = {
            "SQLite": FilledStore(SqliteStore(path), str(path), options.entries, vectors),
            "PostgreSQL": FilledStore(open_store(url), url, options.entries, vectors),
        }
        asyncio.run(measure(stores, options.rounds, options.seconds))
        for store in stores.values():
            store.semantic.close()
            store.store.close()


if __name__ == "__main__":
    main()
