"""Index files: a semantic cache whose namespaces are large enough for graphs, which are saved again and again."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search import vector_index as vectors
from kvproxy.index.search.neighbours import FaissNeighbours
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import Capacity, SqliteStore
from tests.faults.victims.victim import READY, Tell
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry

_SPACES = ("n0", "n1")
_LIMIT = 150


class SmallGraphs(FaissNeighbours):
    """Graphs from 60 vectors on, saved whenever they have grown."""

    def __init__(self, store: SqliteStore) -> None:
        super().__init__(store, HashEmbedder.name, HashEmbedder().dim, small=20, flat_limit=60, threads=1)


class Graphs:
    """Tells of entries as `Stored` does."""

    name = "index files"
    lives = 8
    longest = 0.4

    def prepare(self, folder: Path, seed: int) -> None:
        if seed % 3 == 1:
            (folder / "limited").touch()

    def work(self, folder: Path, seed: int, tell: Tell) -> None:
        vectors.TAIL_LIMIT = 25
        limited = (folder / "limited").exists()
        store = SqliteStore(folder / "r.db", capacity=Capacity(_LIMIT if limited else None))
        semantic = SemanticCache(store, HashEmbedder(), ThresholdPolicy(0.8))
        semantic._neighbours = SmallGraphs(store)
        semantic.rebuild()
        tell(READY)
        asyncio.run(_insert(semantic, seed, tell, full=limited))

    def check(self, folder: Path, told: Sequence[str]) -> None:
        store = SqliteStore(folder / "r.db")
        kept = set(store.ids())
        by_sign = {sign: {line[1:] for line in told if line[0] == sign} for sign in "+~-"}
        limited = (folder / "limited").exists()
        assert len(kept) <= _LIMIT if limited else by_sign["+"] - by_sign["~"] <= kept
        assert not by_sign["-"] & kept
        near, found = SmallGraphs(store), set()
        near.load()
        near.settle()
        for space in _SPACES:
            numbers, ids = store.vector_ids(space, HashEmbedder.name)
            found |= {id.decode() for id in ids}
            if space in near.indexes:
                assert near.indexes[space].numbers() == set(numbers.tolist()), "store and index differ"
            for entry in store.list_entries(limit=3):
                if entry.namespace == space:
                    best = near.search(space, HashEmbedder().embed([entry.prompt])[0], 3)
                    assert best[0][1] > 0.999, "an entry is not found by its own question"
        assert found == kept, "entries without vectors, or vectors without entries"
        near.close()
        store.close()


async def _insert(semantic: SemanticCache, seed: int, tell: Tell, *, full: bool) -> None:
    async def insert(worker: int) -> None:
        for number in range(10**6):
            entry = make_entry(f"question {seed} {worker} {number}", namespace=_SPACES[worker % 2])
            if not await semantic.insert(entry):
                assert full, "an entry was not kept where there was room"
                tell(f"-{entry.id}")  # Another one that was written with it was worth more.
                continue
            tell(f"+{entry.id}")
            if number % 4 == 0:
                tell(f"~{entry.id}")
                await asyncio.to_thread(semantic._store.delete, [entry.id])
                tell(f"-{entry.id}")

    await asyncio.gather(*(insert(worker) for worker in range(4)))
