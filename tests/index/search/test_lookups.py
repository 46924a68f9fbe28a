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
        self.semantic = SemanticCache(self.store, self.embedder, ThresholdPolicy(0.8, guards=()))


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


async def test_those_who_wait_share_a_job_and_each_gets_its_own(cache: Cache) -> None:
    await asyncio.gather(*(cache.semantic.insert(make_entry(f"what is number {n}")) for n in range(20)))
    cache.embedder.calls.clear()
    found = await asyncio.gather(*(cache.semantic.lookup("n", f"what is number {n} really") for n in range(20)))
    assert [lookup.question for lookup in found] == [f"what is number {n} really" for n in range(20)]
    assert all(lookup.candidates[0].prompt in lookup.question for lookup in found)
    assert sum(map(len, cache.embedder.calls)) == 20
    assert len(cache.embedder.calls) <= 2


async def test_what_is_not_decided_in_time_is_skipped_and_what_has_not_begun_never_begins(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproxy.index.search.lookup_queue._PAUSE", 0.0)
    await cache.semantic.insert(make_entry("what is a block"))
    cache.embedder.go.clear()
    first = asyncio.create_task(cache.semantic.lookup("n", "what is a block please", seconds=30))
    await until(lambda: len(cache.embedder.calls) == 2)
    skipped = await cache.semantic.lookup("n", "what is a queue", seconds=0.01)
    assert (skipped.skipped, skipped.outcome, skipped.entry) == (True, "skipped", None)
    assert (skipped.namespace, skipped.question) == ("n", "what is a queue")
    cache.embedder.go.set()
    assert (await first).entry is not None
    # One more, which would be embedded after what was skipped.
    assert (await cache.semantic.lookup("n", "what is a block exactly", seconds=30)).skipped is False
    assert ["what is a queue"] not in cache.embedder.calls


async def test_who_would_wait_too_long_is_told_at_once(cache: Cache) -> None:
    await cache.semantic.insert(make_entry("what is a block"))
    cache.semantic.lookups._seconds = 500.0
    cache.embedder.go.clear()
    first = asyncio.create_task(cache.semantic.lookup("n", "what is a block please", seconds=100.0))
    await until(lambda: len(cache.embedder.calls) == 2)
    second = asyncio.create_task(cache.semantic.lookup("n", "what is a block then", seconds=100.0))
    await asyncio.sleep(0)
    assert second.done() or (await asyncio.wait([second], timeout=60))[0]
    assert second.result().skipped
    cache.embedder.go.set()
    # Where nobody waits a lookup is tried, however slow the last ones were.
    assert (await first).entry is not None


async def test_where_lookups_are_not_decided_in_time_fewer_are_let_in_and_more_again_later(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who would only wait for nothing is told at once, although the job itself is fast: a busy event loop is slow too."""
    monkeypatch.setattr("kvproxy.index.search.lookup_queue._PAUSE", 0.0)
    await cache.semantic.insert(make_entry("what is a block"))
    cache.embedder.go.clear()
    late = [cache.semantic.lookup("n", f"what is number {n}", seconds=0.05) for n in range(12)]
    assert all(found.skipped for found in await asyncio.gather(*late))
    # The first of them is still being embedded.
    assert (await cache.semantic.lookup("n", "what is a queue", seconds=600)).skipped
    cache.embedder.go.set()
    await until(lambda: len(cache.semantic.lookups._batches) == 0)
    sent_away = []
    for again in range(5):
        five = [cache.semantic.lookup("n", f"what is chain {n} of {again}", seconds=600) for n in range(5)]
        sent_away.append(sum(found.skipped for found in await asyncio.gather(*five)))
    assert sent_away == [4, 3, 2, 1, 0]


async def test_after_several_that_came_too_late_none_is_tried_for_a_while_and_longer_after_the_next(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproxy.index.search.lookup_queue._PAUSE", 300.0)
    monkeypatch.setattr("kvproxy.index.search.lookup_queue._LONGEST_PAUSE", 1000.0)
    await cache.semantic.insert(make_entry("what is a block"))
    lookups, pauses = cache.semantic.lookups, []
    for again in range(4):
        cache.embedder.go.clear()
        late = [cache.semantic.lookup("n", f"what is number {n} of {again}", seconds=0.05) for n in range(3)]
        assert all(found.skipped for found in await asyncio.gather(*late))
        cache.embedder.go.set()
        await until(lambda: len(lookups._batches) == 0)
        if again == 0:
            # Anybody may be late once.
            assert lookups._again < 0
            continue
        pauses.append(lookups._again - lookups._late_at)
        calls = len(cache.embedder.calls)
        # Nobody waits, and there is all the time in the world.
        assert (await cache.semantic.lookup("n", f"what is a queue {again}", seconds=600)).skipped
        assert len(cache.embedder.calls) == calls
        assert not (await cache.semantic.lookup("n", f"what takes its time {again}")).skipped
        lookups._again = 0.0
    assert pauses == pytest.approx([300.0, 600.0, 1000.0])
    assert not (await cache.semantic.lookup("n", "what is a queue at last", seconds=600)).skipped
    assert lookups._late == 0
    assert not (await cache.semantic.lookup("n", "what is a queue once more", seconds=600)).skipped


async def test_what_waits_behind_makes_way_while_lookups_are_skipped_but_gets_its_turn(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproxy.index.search.lookup_queue._OVERLOADED", 1e9)
    monkeypatch.setattr("kvproxy.index.search.deferred_embedding._MOST_SECONDS", 600.0)
    await cache.semantic.insert(make_entry("what is a block"))
    assert not cache.semantic.lookups.busy
    cache.embedder.go.clear()
    assert (await cache.semantic.lookup("n", "what is a queue", seconds=0.01)).skipped
    cache.embedder.go.set()
    await until(lambda: len(cache.semantic.lookups._batches) == 0)
    assert cache.semantic.lookups.busy
    await cache.semantic.insert_soon(make_entry("what is a queue"), None)
    await asyncio.sleep(0.03)
    assert len(cache.semantic.behind) == 1
    await cache.semantic.behind.stop()
    monkeypatch.setattr("kvproxy.index.search.deferred_embedding._MOST_SECONDS", 0.02)
    cache.semantic.behind._closed = False
    await cache.semantic.insert_soon(make_entry("what is a chain"), None)
    await until(lambda: cache.store.missing_vectors(HashEmbedder.name, 10) == [])


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
    assert await cache.semantic.insert_soon(entry, told.append)
    # It is stored before it is embedded, and found by equal requests.
    assert cache.store.find(entry.key) == entry
    cache.embedder.go.set()
    await cache.semantic.behind.idle()
    (lookup,) = told
    assert [candidate.prompt for candidate in lookup.candidates] == ["what is a block"]
    assert lookup.candidates[0].verdict == "accepted"
    near = await cache.semantic.lookup("n", "what is a block please do")
    assert near.entry is not None
    assert near.candidates[0].id == entry.id


async def test_what_is_beyond_the_bound_waits_in_the_store(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.index.search.deferred_embedding._MOST", 3)
    told: list[Lookup] = []
    cache.embedder.go.clear()
    for number in range(10):
        assert await cache.semantic.insert_soon(make_entry(f"what is number {number}"), told.append)
        assert len(cache.semantic.behind) <= 3
    dropped = cache.semantic.behind.dropped
    assert 3 <= dropped <= 7
    cache.embedder.go.set()
    await cache.semantic.behind.idle()
    assert len(told) == 10 - dropped
    assert cache.store.missing_vectors(HashEmbedder.name, 10) == []
    for number in range(10):
        assert (await cache.semantic.lookup("n", f"what is number {number}")).candidates[0].similarity > 0.999


async def test_lookups_come_first(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.index.search.deferred_embedding._MOST_SECONDS", 600.0)
    await cache.semantic.insert(make_entry("what is a block"))
    cache.embedder.go.clear()
    first = asyncio.create_task(cache.semantic.lookup("n", "what is a block please"))
    await until(lambda: cache.semantic.lookups.busy)
    await cache.semantic.insert_soon(make_entry("what is a queue"), None)
    await asyncio.sleep(0.03)
    assert len(cache.semantic.behind) == 1
    cache.embedder.go.set()
    await first
    await cache.semantic.behind.idle()
    assert cache.store.missing_vectors(HashEmbedder.name, 10) == []


async def test_what_fails_behind_an_answer_is_made_good_with_the_next(cache: Cache) -> None:
    cache.embedder.broken = True
    await cache.semantic.insert_soon(make_entry("what is a block"), None)
    await cache.semantic.behind.idle()
    assert len(cache.store.missing_vectors(HashEmbedder.name, 10)) == 1
    cache.embedder.broken = False
    await cache.semantic.insert_soon(make_entry("what is a queue"), None)
    await cache.semantic.behind.idle()
    assert cache.store.missing_vectors(HashEmbedder.name, 10) == []


async def test_the_index_takes_vectors_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """It passes over numbers below the last, so that one that came late would never be found."""
    from kvproxy.index.search.neighbours import FaissNeighbours

    made = Cache(tmp_path)
    made.semantic._neighbours = FaissNeighbours(made.store, HashEmbedder.name, 64, small=4)
    for number in range(30):
        insert = made.semantic.insert(make_entry(f"now {number}"))
        soon = made.semantic.insert_soon(make_entry(f"soon {number}"), None)
        await asyncio.gather(insert, soon)
    await made.semantic.behind.idle()
    index = made.semantic._neighbours.indexes["n"]
    assert index.numbers() == set(made.store.vector_ids("n", HashEmbedder.name)[0].tolist())
    assert len(index) == 60
    made.semantic.close()
    made.store.close()


async def test_a_question_whose_vector_is_known_is_found_at_once(cache: Cache) -> None:
    await cache.semantic.insert(make_entry("what is a block"))
    await cache.semantic.lookup("n", "what is a queue")
    cache.embedder.go.clear()
    assert await cache.semantic.insert_soon(make_entry("what is a queue"), None)
    assert cache.store.missing_vectors(HashEmbedder.name, 10) == []
    assert await cache.semantic.insert_soon(make_entry("what is a stack"), None)
    assert [entry.prompt for entry in cache.store.missing_vectors(HashEmbedder.name, 10)] == ["what is a stack"]
    cache.embedder.go.set()
    await cache.semantic.behind.idle()
    assert cache.store.missing_vectors(HashEmbedder.name, 10) == []


async def test_who_may_wait_just_long_enough_is_worked_on(cache: Cache) -> None:
    await cache.semantic.insert(make_entry("what is a block"))
    cache.semantic.lookups._seconds = 50.0
    cache.embedder.go.clear()
    first = asyncio.create_task(cache.semantic.lookup("n", "what is a block please", seconds=100.0))
    await until(lambda: len(cache.embedder.calls) == 2)
    assert (await cache.semantic.lookup("n", "what is a block then", seconds=99.9)).skipped
    second = asyncio.create_task(cache.semantic.lookup("n", "what is a block there", seconds=100.0))
    await until(lambda: len(cache.semantic.lookups._batches) == 2)
    cache.embedder.go.set()
    assert [(await each).skipped for each in (first, second)] == [False, False]


async def test_a_namespace_is_known_to_hold_something_until_nothing_is_found_in_it(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvproxy.index.search.namespace_cache._MOST", 2)
    asked: list[str] = []
    holds = cache.semantic._neighbours.holds

    def noted(namespace: str) -> bool:
        asked.append(namespace)
        return holds(namespace)

    monkeypatch.setattr(cache.semantic._neighbours, "holds", noted)

    async def candidates(namespace: str) -> int:
        return len((await cache.semantic.lookup(namespace, "what is a block please")).candidates)

    assert await candidates("n") == 0
    entry = make_entry("what is a block")
    await cache.semantic.insert(entry)
    assert [await candidates("n") for _ in range(3)] == [1, 1, 1]
    assert asked == ["n", "n"]
    await cache.semantic.remove([entry.id])
    assert [await candidates("n") for _ in range(2)] == [0, 0]
    assert asked == ["n", "n", "n"]
    # Two namespaces are remembered, and of three the one that was asked in longest ago is not.
    for namespace in "abc":
        await cache.semantic.insert(make_entry("what is a block", key=namespace, namespace=namespace))
    asked.clear()
    assert [await candidates(namespace) for namespace in "abacab"] == [1] * 6
    assert asked == ["a", "b", "c", "b"]
