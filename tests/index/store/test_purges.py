"""Expired entries, stale entries, and the eviction order."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from kvproxy.index.entry import Entry
from kvproxy.index.errors import StoreDamaged
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.lookup import KEPT
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import Capacity, SqliteStore
from tests.index.conftest import MakeStore
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry


def test_a_damaged_entry_stays_damaged_after_it_is_expired(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "r.db", clock=lambda: 2000.0)
    whole, damaged = make_entry("whole"), make_entry("damaged", stale_if_error=5)
    store.put(whole)
    store.put(damaged)
    with sqlite3.connect(tmp_path / "r.db") as connection:
        connection.execute("update responses set stale_if_error = 5000 where id = ?", [damaged.id])
    connection.close()
    store.expire_now([whole.id, damaged.id])
    assert store.get(whole.id) == replace(whole, expires=2000.0)
    with pytest.raises(StoreDamaged):
        store.get(damaged.id)
    store.close()


def test_the_eviction_order_is_listed_with_reasons(make_store: MakeStore) -> None:
    store = make_store(clock=lambda: 2000.0, capacity=Capacity(entries=3))
    over = make_entry("over", expires=1500.0, completion_tokens=900)
    stale = make_entry("stale", expires=1500.0, completion_tokens=50, stale_if_error=1000)
    dear = make_entry("dear", completion_tokens=500)
    for entry in (over, stale, dear):
        store.put(entry)
    queue = store.eviction_order(9)
    assert [(each.entry.prompt, each.reason) for each in queue] == [
        ("over", "expired"),
        ("stale", "low priority"),
        ("dear", "low priority"),
    ]
    assert queue[1].priority < queue[2].priority
    assert sum(each.bytes for each in queue) == store.stats()["entry_bytes"]
    assert (store.stats()["expired"], store.stats()["stale"]) == (2, 1)
    for place in range(3):
        (gone,) = store.put(make_entry(f"new {place}", completion_tokens=5000)).removed
        assert gone.id == queue[place].entry.id


async def test_stale_neighbours_hide_no_fresh_ones(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "r.db", clock=lambda: 2000.0)
    semantic = SemanticCache(store, HashEmbedder(), ThresholdPolicy(0.6, guards=()))
    words = "tell me what the free queue of old blocks is and why it is there"

    async def put(prompt: str, **fields: float) -> Entry:
        entry = make_entry(prompt, **fields)
        await semantic.insert(entry)
        return entry

    for number in range(9):
        await put(f"{words} {number}", expires=1500.0, stale_if_error=1000.0)
    fresh = await put(f"{words} but please be quick")
    found = await semantic.lookup("n", words)
    assert found.entry == fresh
    assert [each.verdict for each in found.candidates].count("expired") == 5
    kept = await semantic.lookup("n", words, served=KEPT)
    assert kept.entry is not None
    assert kept.entry.expires == 1500.0
    semantic.close()
    store.close()
