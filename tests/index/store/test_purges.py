"""Removals by operators, stale entries, and the eviction order."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from kvproxy.index.entry import Entry
from kvproxy.index.errors import StoreDamaged
from kvproxy.index.policies.threshold import ThresholdPolicy
from kvproxy.index.search.lookup import KEPT
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import Capacity, EntryFilter, PurgeRequest, SqliteStore
from kvproxy.index.store.writer import MAX_PURGES
from tests.index.conftest import MakeStore
from tests.index.doubles import HashEmbedder
from tests.index.entries import make_entry

ME = PurgeRequest("me", "tag=old")


def test_purges_are_listed_newest_first(make_store: MakeStore) -> None:
    store = make_store(clock=lambda: 2000.0)
    one, other = make_entry("one", stale_if_error=10), make_entry("other")
    store.put(one)
    store.put(other)
    assert store.expire_now([one.id, other.id, "none"], ME) == 2
    assert store.expire_now([one.id], ME) == 0
    assert len(store.delete([other.id], PurgeRequest("you", "id"))) == 1
    store.delete([one.id])
    told = [(each.operator, each.filter, each.soft, each.entries, each.time) for each in store.purges(10)]
    assert told == [
        ("you", "id", False, 1, 2000.0),
        ("me", "tag=old", True, 0, 2000.0),
        ("me", "tag=old", True, 2, 2000.0),
    ]
    assert len(store.purges(1)) == 1


def test_the_list_of_purges_is_bounded(tmp_path: Path, store: SqliteStore) -> None:
    with sqlite3.connect(tmp_path / "r.db") as connection:
        sql = "insert into purges (time, operator, filter, soft, entries) values (?, 'w', 'x', 0, 0)"
        connection.executemany(sql, [(number,) for number in range(MAX_PURGES + 5)])
    connection.close()
    store.delete([], ME)
    listed = store.purges(2 * MAX_PURGES)
    assert (len(listed), listed[0].operator, listed[-1].time) == (MAX_PURGES, "me", 6.0)


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


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (EntryFilter(), "all"),
        (EntryFilter(tag="a", older_than=60.0), "tag=a, older_than=60.0"),
        (EntryFilter(search="secret"), "search=(words)"),
    ],
)
def test_a_description_of_a_filter_can_omit_texts(where: EntryFilter, said: str) -> None:
    assert where.description(texts=False) == said
    assert EntryFilter(search="secret").description() == "search=secret"
