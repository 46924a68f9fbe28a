"""Lookups have timeouts; skipped questions are embedded later."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvproxy.index.models.embedder import EmbeddingCache
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search import lookup_queue
from kvproxy.index.search.lookup_queue import LookupQueue
from kvproxy.index.search.lookup_result import SERVABLE_AFTER_ERROR, Lookup, LookupRequest
from kvproxy.index.search.semantic_cache import DeferredEmbeddings, SemanticCache
from kvproxy.index.search.vector_search import FaissSearch
from kvproxy.index.store import open_store
from tests.index.conftest import MakeStore
from tests.index.doubles import HashEmbedder, Held
from tests.index.entries import indexed_numbers, make_entry, stored_vectors
from tests.polling import until


class Cache:
    def __init__(self, path: Path) -> None:
        self.embedder = Held()
        self.store = open_store(path / "r.db")
        self.semantic = SemanticCache(self.store, self.embedder, ThresholdPolicy(0.8, guards=()), threads=1)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    made = Cache(tmp_path)
    yield made
    made.embedder.go.set()
    made.semantic.close()
    made.store.close()


def test_equal_texts_are_embedded_once() -> None:
    embedder = Held()
    embeddings = EmbeddingCache(embedder, size=10)
    vectors = embeddings.vectors([f"text {number % 10}" for number in range(40)])
    assert np.allclose(vectors[3], vectors[13])
    embeddings.vector("text 3")
    assert list(map(len, embedder.calls)) == [10]
    embeddings.vector("one more")
    assert embeddings.get_cached("text 3") is not None
    assert embeddings.get_cached("text 0") is None


async def test_an_overloaded_queue_starts_no_late_lookups(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    await cache.semantic.insert(make_entry("what is a block"))
    cache.embedder.calls.clear()
    cache.embedder.seconds = 0.08
    decide = cache.semantic.decider.decide

    def slow(request: LookupRequest, vector: np.ndarray) -> Lookup:
        time.sleep(0.04)
        return decide(request, vector)

    monkeypatch.setattr(cache.semantic.decider, "decide", slow)
    lookups = []
    for number in range(40):
        lookups.append(asyncio.create_task(cache.semantic.lookup("n", f"what is number {number}", seconds=0.4)))
        await asyncio.sleep(0.04)
    decided = [lookup for lookup in await asyncio.gather(*lookups) if lookup.skip_reason is None]
    # In order of arrival, only the first three would be in time. A busy machine is late for some that are begun.
    assert len(decided) >= 6
    assert len(decided) >= 0.5 * sum(map(len, cache.embedder.calls))


async def test_a_lookup_is_skipped_if_the_queue_is_full(cache: Cache) -> None:
    await cache.semantic.insert(make_entry("what is a block"))
    cache.embedder.go.clear()
    first = asyncio.create_task(cache.semantic.lookup("n", "what is number 0", seconds=60))
    await asyncio.to_thread(until, lambda: len(cache.embedder.calls) == 2)
    waiting = [asyncio.create_task(cache.semantic.lookup("n", f"what is number {n}", seconds=60)) for n in range(1, 17)]
    await asyncio.to_thread(until, lambda: len(cache.semantic._queue) == 16)
    assert (await cache.semantic.lookup("n", "what is number 17", seconds=60)).skip_reason == "queue-full"
    # A lookup without a timeout ignores the bound.
    unbounded = asyncio.create_task(cache.semantic.lookup("n", "what is number 18"))
    await asyncio.to_thread(until, lambda: len(cache.semantic._queue) == 17)
    # A cancelled lookup leaves room for another one.
    waiting.pop().cancel()
    unbounded.cancel()
    await asyncio.sleep(0)
    waiting.append(asyncio.create_task(cache.semantic.lookup("n", "what is number 11", seconds=60)))
    await asyncio.sleep(0)
    cache.embedder.go.set()
    assert all(lookup.skip_reason is None for lookup in await asyncio.gather(first, *waiting))


async def test_a_deferred_entry_is_embedded_between_lookups(cache: Cache) -> None:
    await cache.semantic.insert(make_entry("what is a block"))
    cache.embedder.calls.clear()
    cache.embedder.go.clear()
    first = asyncio.create_task(cache.semantic.lookup("n", "what is a block please"))
    await asyncio.to_thread(until, lambda: len(cache.embedder.calls) == 1)
    for name in ("queue", "chain"):
        await cache.semantic.insert_deferred(make_entry(f"what is a {name}"))
    lookups = [f"what is number {n}" for n in range(3)]
    others = [asyncio.create_task(cache.semantic.lookup("n", text)) for text in lookups]
    await asyncio.to_thread(until, lambda: len(cache.semantic._queue) == 3)
    cache.embedder.go.set()
    await asyncio.gather(first, *others)
    await cache.semantic.deferred_embeddings.wait_until_idle()
    calls, deferred = sum(cache.embedder.calls[1:], list[str]()), ["what is a queue", "what is a chain"]
    assert calls in ([*lookups, *deferred], [deferred[0], *lookups, deferred[1]])
    assert cache.store.missing_vectors(HashEmbedder.name, 10) == []


async def test_a_failed_embedding_is_repeated_with_the_next_entry(cache: Cache) -> None:
    cache.embedder.broken = True
    await cache.semantic.insert_deferred(make_entry("what is a block"))
    await cache.semantic.deferred_embeddings.wait_until_idle()
    assert len(cache.store.missing_vectors(HashEmbedder.name, 10)) == 1
    cache.embedder.broken = False
    await cache.semantic.insert_deferred(make_entry("what is a queue"))
    await cache.semantic.deferred_embeddings.wait_until_idle()
    assert cache.store.missing_vectors(HashEmbedder.name, 10) == []


async def test_concurrent_inserts_reach_the_index_in_order(cache: Cache) -> None:
    # The index ignores numbers below its last one.
    near = cache.semantic._vector_search = FaissSearch(cache.store, HashEmbedder.name, 64, min_indexed=4)
    for number in range(30):
        insert = cache.semantic.insert(make_entry(f"now {number}"))
        await asyncio.gather(insert, cache.semantic.insert_deferred(make_entry(f"soon {number}")))
    await cache.semantic.deferred_embeddings.wait_until_idle()
    index = near.indexes["n"]
    assert indexed_numbers(index) == set(stored_vectors(cache.store, "n", HashEmbedder.name))
    assert len(index) == 60


async def test_an_entry_that_is_deferred_during_the_last_embedding_is_embedded() -> None:
    calls: list[int] = []

    async def embed_some() -> bool:
        calls.append(len(calls))
        if len(calls) == 1:
            deferred.start()
        return False

    deferred = DeferredEmbeddings(embed_some)
    deferred.start()
    await deferred.wait_until_idle()
    assert len(calls) == 2


async def test_a_cached_vector_is_stored_at_once(cache: Cache) -> None:
    await cache.semantic.insert(make_entry("what is a block"))
    await cache.semantic.lookup("n", "what is a queue")
    cache.embedder.go.clear()
    assert await cache.semantic.insert_deferred(make_entry("what is a queue"))
    assert cache.store.missing_vectors(HashEmbedder.name, 10) == []
    assert await cache.semantic.insert_deferred(make_entry("what is a stack"))
    assert [entry.prompt for entry in cache.store.missing_vectors(HashEmbedder.name, 10)] == ["what is a stack"]
    cache.embedder.go.set()
    await cache.semantic.deferred_embeddings.wait_until_idle()
    assert cache.store.missing_vectors(HashEmbedder.name, 10) == []


async def test_stale_neighbours_hide_no_fresh_ones(open_file: MakeStore) -> None:
    store = open_file(clock=lambda: 2000.0)
    semantic = SemanticCache(store, HashEmbedder(), ThresholdPolicy(0.6, guards=()))
    words = "tell me what the free queue of old blocks is and why it is there"
    for number in range(9):
        await semantic.insert(make_entry(f"{words} {number}", expires=1500.0, stale_if_error=1000.0))
    fresh = make_entry(f"{words} but please be quick")
    await semantic.insert(fresh)
    found = await semantic.lookup("n", words)
    assert found.entry == fresh
    assert [each.verdict for each in found.candidates].count("expired") == 5
    kept = await semantic.lookup("n", words, allowed_freshness=SERVABLE_AFTER_ERROR)
    assert kept.entry is not None
    assert kept.entry.expires == 1500.0
    semantic.close()


async def order_of(jobs: int, lookups: int) -> list[str]:
    """Return the order in which jobs and lookups ran that were waiting together, the jobs first."""
    ran, blocked = list[str](), threading.Event()

    def look_up(request: LookupRequest) -> Lookup:
        ran.append(request.question)
        return request.empty_result()

    queue = LookupQueue(look_up, threads=1, size=64)
    try:
        first = asyncio.ensure_future(queue.run_in_background(blocked.wait))
        waiting = [asyncio.ensure_future(queue.run_in_background(lambda: ran.append("job"))) for _ in range(jobs)]
        found = [asyncio.ensure_future(queue.find(LookupRequest("n", "lookup"))) for _ in range(lookups)]
        await asyncio.sleep(0)
        blocked.set()
        await asyncio.gather(first, *waiting, *found)
    finally:
        queue.close()
    return ran


async def test_lookups_run_before_background_jobs() -> None:
    assert await order_of(jobs=3, lookups=6) == ["lookup"] * 6 + ["job"] * 3


async def test_a_job_that_waits_too_long_runs_after_the_next_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_queue, "_BACKGROUND_SECONDS", 0.0)
    assert (await order_of(jobs=1, lookups=6)).index("job") == 1


def test_a_lookup_may_start_late_if_lookups_are_short() -> None:
    def may_begin(left: float, duration: float) -> bool:
        waiting = lookup_queue._WaitingLookup(LookupRequest("n", "lookup"), time.monotonic() + left, seconds=100.0)
        begins = waiting.may_begin(duration)
        assert begins or isinstance(waiting.future.exception(), TimeoutError)
        return begins

    assert may_begin(left=20.0, duration=5.0)
    assert not may_begin(left=20.0, duration=15.0)
    # However long the last lookups took, a lookup starts in the first half of its timeout.
    assert may_begin(left=60.0, duration=1000.0)
    assert not may_begin(left=40.0, duration=1000.0)


async def test_a_lookup_that_is_too_late_ends_before_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_queue, "_MIN_QUEUED_SHARE", 0.0)
    queue, began = LookupQueue(LookupRequest.empty_result, threads=1, size=64), time.monotonic()
    with contextlib.closing(queue), pytest.raises(TimeoutError):
        await queue.find(LookupRequest("n", "lookup"), seconds=20.0)
    assert time.monotonic() - began < 10.0
