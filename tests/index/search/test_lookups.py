"""Lookups share a job, and have a budget: what is not decided in time is skipped, and made good behind the answer."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from kvproxy.index.errors import EmbedderError
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.lookup import Lookup
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import SqliteStore
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry


class Held(HashEmbedder):
    """Embeds nothing before it is let go; the texts of each call are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.calls: list[list[str]] = []
        self.broken = False

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.calls.append(list(texts))
        assert self.go.wait(20)
        if self.broken:
            raise RuntimeError("broken")
        return super().embed(texts)


class Cache:
    def __init__(self, path: Path) -> None:
        self.embedder = Held()
        self.store = SqliteStore(path / "r.db")
        self.semantic = SemanticCache(self.store, self.embedder, ThresholdPolicy(0.8, guards=()), threads=1)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    made = Cache(tmp_path)
    yield made
    made.embedder.go.set()
    made.semantic.close()
    made.store.close()


async def until(true: object) -> None:
    for _ in range(2000):
        if callable(true) and true():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to be")


async def test_waiting_lookups_share_a_run_of_the_embedder(cache: Cache) -> None:
    await asyncio.gather(*(cache.semantic.insert(make_entry(f"what is number {n}")) for n in range(8)))
    cache.embedder.calls.clear()
    found = await asyncio.gather(*(cache.semantic.lookup("n", f"what is number {n} really") for n in range(8)))
    assert [lookup.question for lookup in found] == [f"what is number {n} really" for n in range(8)]
    assert all(lookup.candidates[0].prompt in lookup.question for lookup in found)
    assert sum(map(len, cache.embedder.calls)) == 8
    assert len(cache.embedder.calls) <= 4


async def test_a_lookup_that_exceeds_its_timeout_is_skipped_and_never_begins_later(cache: Cache) -> None:
    await cache.semantic.insert(make_entry("what is a block"))
    cache.embedder.go.clear()
    first = asyncio.create_task(cache.semantic.lookup("n", "what is a block please", seconds=30))
    await until(lambda: len(cache.embedder.calls) == 2)
    skipped = await cache.semantic.lookup("n", "what is a queue", seconds=0.01)
    assert (skipped.skipped, skipped.outcome, skipped.entry) == ("timeout", "skipped", None)
    assert (skipped.namespace, skipped.question) == ("n", "what is a queue")
    cache.embedder.go.set()
    assert (await first).entry is not None
    assert (await cache.semantic.lookup("n", "what is a block exactly", seconds=30)).skipped is None
    assert ["what is a queue"] not in cache.embedder.calls


async def test_a_lookup_that_does_not_fit_the_queue_is_skipped_at_once(cache: Cache) -> None:
    await cache.semantic.insert(make_entry("what is a block"))
    cache.embedder.go.clear()
    first = asyncio.create_task(cache.semantic.lookup("n", "what is number 0", seconds=60))
    await until(lambda: len(cache.embedder.calls) == 2)
    waiting = [asyncio.create_task(cache.semantic.lookup("n", f"what is number {n}", seconds=60)) for n in range(1, 9)]
    await until(lambda: len(cache.semantic._queue) == 8)
    assert (await cache.semantic.lookup("n", "what is number 9", seconds=60)).skipped == "queue-full"
    # A lookup without a timeout ignores the bound.
    unbounded = asyncio.create_task(cache.semantic.lookup("n", "what is number 10"))
    await until(lambda: len(cache.semantic._queue) == 9)
    # A cancelled lookup leaves room for another one.
    waiting.pop().cancel()
    unbounded.cancel()
    await asyncio.sleep(0)
    waiting.append(asyncio.create_task(cache.semantic.lookup("n", "what is number 11", seconds=60)))
    await asyncio.sleep(0)
    cache.embedder.go.set()
    assert all(lookup.skipped is None for lookup in await asyncio.gather(first, *waiting))


async def test_a_lookup_that_fails_fails_alone(cache: Cache) -> None:
    await cache.semantic.insert(make_entry("what is a block"))
    cache.embedder.broken = True
    results = await asyncio.gather(
        *(cache.semantic.lookup("n", f"what is number {n}") for n in range(3)), return_exceptions=True
    )
    assert all(isinstance(result, EmbedderError) for result in results)
    cache.embedder.broken = False
    assert (await cache.semantic.lookup("n", "what is a block please")).entry is not None


async def test_a_skipped_question_is_found_and_told_of_behind_its_answer(cache: Cache) -> None:
    await cache.semantic.insert(make_entry("what is a block"))
    told: list[Lookup] = []
    entry = make_entry("what is a block please")
    cache.embedder.go.clear()
    assert await cache.semantic.insert_deferred(entry, told.append)
    # It is stored before it is embedded, and found by equal requests.
    assert cache.store.find(entry.key) == entry
    cache.embedder.go.set()
    await cache.semantic.deferred.idle()
    (lookup,) = told
    assert [candidate.prompt for candidate in lookup.candidates] == ["what is a block"]
    assert lookup.candidates[0].verdict == "accepted"
    near = await cache.semantic.lookup("n", "what is a block please do")
    assert near.entry is not None
    assert near.candidates[0].id == entry.id


async def test_what_is_beyond_the_bound_waits_in_the_store(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.index.search.deferred_embedding._LIMIT", 3)
    told: list[Lookup] = []
    cache.embedder.go.clear()
    for number in range(10):
        assert await cache.semantic.insert_deferred(make_entry(f"what is number {number}"), told.append)
        assert len(cache.semantic.deferred) <= 3
    dropped = cache.semantic.deferred.dropped
    assert 3 <= dropped <= 7
    cache.embedder.go.set()
    await cache.semantic.deferred.idle()
    assert len(told) == 10 - dropped
    assert cache.store.missing_vectors(HashEmbedder.name, 10) == []
    for number in range(10):
        assert (await cache.semantic.lookup("n", f"what is number {number}")).candidates[0].similarity > 0.999


async def test_a_deferred_entry_is_embedded_between_lookups(cache: Cache) -> None:
    await cache.semantic.insert(make_entry("what is a block"))
    cache.embedder.calls.clear()
    cache.embedder.go.clear()
    first = asyncio.create_task(cache.semantic.lookup("n", "what is a block please"))
    await until(lambda: len(cache.embedder.calls) == 1)
    await cache.semantic.insert_deferred(make_entry("what is a queue"), None)
    await cache.semantic.insert_deferred(make_entry("what is a chain"), None)
    others = [asyncio.create_task(cache.semantic.lookup("n", f"what is number {n}")) for n in range(3)]
    await until(lambda: len(cache.semantic._queue) == 3)
    cache.embedder.go.set()
    await asyncio.gather(first, *others)
    await cache.semantic.deferred.idle()
    deferred = [["what is a queue"], ["what is a chain"]]
    lookups = [f"what is number {n}" for n in range(3)]
    assert cache.embedder.calls in (
        [["what is a block please"], lookups, *deferred],
        [["what is a block please"], deferred[0], lookups, deferred[1]],
    )
    assert cache.store.missing_vectors(HashEmbedder.name, 10) == []


async def test_what_fails_behind_an_answer_is_made_good_with_the_next(cache: Cache) -> None:
    cache.embedder.broken = True
    await cache.semantic.insert_deferred(make_entry("what is a block"), None)
    await cache.semantic.deferred.idle()
    assert len(cache.store.missing_vectors(HashEmbedder.name, 10)) == 1
    cache.embedder.broken = False
    await cache.semantic.insert_deferred(make_entry("what is a queue"), None)
    await cache.semantic.deferred.idle()
    assert cache.store.missing_vectors(HashEmbedder.name, 10) == []


async def test_the_index_takes_vectors_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """It passes over numbers below the last, so that one that came late would never be found."""
    from kvproxy.index.search.neighbours import FaissNeighbours

    made = Cache(tmp_path)
    made.semantic._neighbours = FaissNeighbours(made.store, HashEmbedder.name, 64, small=4)
    for number in range(30):
        insert = made.semantic.insert(make_entry(f"now {number}"))
        soon = made.semantic.insert_deferred(make_entry(f"soon {number}"), None)
        await asyncio.gather(insert, soon)
    await made.semantic.deferred.idle()
    index = made.semantic._neighbours.indexes["n"]
    assert index.numbers() == set(made.store.vector_ids("n", HashEmbedder.name)[0].tolist())
    assert len(index) == 60
    made.semantic.close()
    made.store.close()


async def test_a_question_whose_vector_is_known_is_found_at_once(cache: Cache) -> None:
    await cache.semantic.insert(make_entry("what is a block"))
    await cache.semantic.lookup("n", "what is a queue")
    cache.embedder.go.clear()
    assert await cache.semantic.insert_deferred(make_entry("what is a queue"), None)
    assert cache.store.missing_vectors(HashEmbedder.name, 10) == []
    assert await cache.semantic.insert_deferred(make_entry("what is a stack"), None)
    assert [entry.prompt for entry in cache.store.missing_vectors(HashEmbedder.name, 10)] == ["what is a stack"]
    cache.embedder.go.set()
    await cache.semantic.deferred.idle()
    assert cache.store.missing_vectors(HashEmbedder.name, 10) == []
