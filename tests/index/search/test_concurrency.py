"""Lookups during writes, expiry, eviction, and rebuilds return correct results without waiting."""

import asyncio
import random
import threading
import time

import numpy as np
import pytest

from kvproxy.index.entry import Entry
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.search.vector_search import FaissSearch
from kvproxy.index.store import Capacity, Store, StoredQuestion
from tests.index.conftest import MakeStore
from tests.index.doubles import HashEmbedder
from tests.index.entries import indexed_numbers, make_entry, stored_vectors


async def test_concurrent_lookups_and_writes_return_correct_hits(open_file: MakeStore) -> None:
    chance = random.Random(0)
    store = open_file(capacity=Capacity(entries=300))
    semantic = SemanticCache(store, HashEmbedder(), ThresholdPolicy(0.999, guards=()))
    near = semantic._vector_search = FaissSearch(store, HashEmbedder.name, 64, min_indexed=20, flat_limit=80)
    semantic.rebuild()
    removed: set[str] = set()
    served = 0

    async def write(worker: int) -> None:
        for number in range(70):
            space = f"n{chance.randrange(2)}"
            lifetime = 0.05 if number % 10 == 0 else 1e9
            entry = make_entry(f"{worker} asks {number}", namespace=space, created=0, expires=time.time() + lifetime)
            assert await semantic.insert(entry)
            if number % 3 == 0:
                removed.add(entry.id)
                assert len(await asyncio.to_thread(store.delete, [entry.id])) <= 1
            if number % 40 == 0:
                await asyncio.to_thread(ResponseCache(store, semantic).maintain)

    async def ask() -> None:
        nonlocal served
        while writers.done() is False:
            space, text = f"n{chance.randrange(2)}", f"{chance.randrange(6)} asks {chance.randrange(70)}"
            gone = set(removed) - set(store.ids())
            found = await semantic.lookup(space, text)
            await asyncio.sleep(0)  # A lookup in an empty namespace does not yield.
            if found.entry is not None:
                served += 1
                assert (found.entry.namespace, sorted(found.entry.prompt.split())) == (space, sorted(text.split()))
                assert found.entry.id not in gone

    writers = asyncio.gather(*(write(worker) for worker in range(6)))
    await asyncio.gather(writers, ask(), ask(), ask())
    near.wait_for_rebuilds()
    ResponseCache(store, semantic).maintain()
    near.wait_for_rebuilds()
    assert served > 20
    assert store.count() <= 300
    for space in ("n0", "n1"):
        assert near.indexes[space].is_graph
        assert indexed_numbers(near.indexes[space]) == set(stored_vectors(store, space, HashEmbedder.name))
    semantic.close()


def test_reads_run_in_parallel(store: Store) -> None:
    entry = make_entry()
    store.put(entry)
    with store.database.reader(), store.database.reader():  # Two long reads.
        found: list[Entry | None] = []
        reader = threading.Thread(target=lambda: found.append(store.find(entry.key)), daemon=True)
        reader.start()
        reader.join(5)
        assert found == [entry]


async def test_an_entry_of_another_namespace_is_never_a_candidate(make_store: MakeStore) -> None:
    store = make_store()
    semantic = SemanticCache(store, HashEmbedder(), ThresholdPolicy(0.5, guards=()))
    await semantic.insert(make_entry("the same words", namespace="mine"))
    other = make_entry("the same words", namespace="theirs")
    await semantic.insert(other)

    class Confused:
        """An index that confuses namespaces."""

        def __getattr__(self, name: str) -> object:
            return getattr(inner, name)

        def search(self, namespace: str, vector: np.ndarray, limit: int) -> list[tuple[StoredQuestion, float]]:
            return [(store.questions([other.id])[other.id], 1.0), *inner.search(namespace, vector, limit)]

    inner = semantic._vector_search
    semantic._vector_search = Confused()  # type: ignore[assignment]
    found = await semantic.lookup("mine", "the same words")
    assert found.entry is not None
    assert found.entry.namespace == "mine"
    assert [candidate.id == other.id for candidate in found.candidates] == [False]


def test_expired_entries_are_removed_in_parts(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.index.store.eviction._MAX_EXPIRED", 40)
    now = 1000.0
    store = make_store(clock=lambda: now, capacity=Capacity(entries=100))
    for number in range(100):
        store.put(make_entry(f"q {number}", created=now, expires=now + (1 if number < 90 else 1e9)))
    now += 10
    # A put removes expired entries before all others.
    written = store.put(make_entry("new", created=now))
    assert len(written.removed) == 40
    parts = []
    while gone := store.remove_expired():
        parts.append(len(gone))
    assert parts == [40, 10]
    assert store.count() == 11
