"""Storage, expiry, and eviction agree with a dictionary that follows the same rules."""

import json
import random

import numpy as np
import pytest

from kvproxy.index.entry import Entry
from kvproxy.index.store import Capacity, EntryFilter, NewEntry
from tests.index.conftest import MakeStore
from tests.index.entries import make_entry
from tests.reference.naive_store import NaiveStore

Limits = tuple[int | None, int | None, dict[str, int]]
"""The most entries, the most bytes, and the most bytes of a tenant."""


def new_entry(draw: random.Random, number: int, now: float) -> Entry:
    key = draw.choice("abcdef")
    stale = draw.choice([(0, 0), (0, 0), (90, 0), (0, 150), (100, 40)])
    return make_entry(
        key,
        id=f"{draw.getrandbits(32):08x}{number:024x}",
        key=key,
        tenant=draw.choice("tu"),
        response=json.dumps("x" * draw.randrange(300)).encode(),
        completion_tokens=draw.randrange(50),
        created=now,
        expires=now + draw.choice([50, 200, 1000]),
        stale_while_revalidate=stale[0],
        stale_if_error=stale[1],
    )


@pytest.mark.parametrize(
    "limits", [(None, 900, {}), (3, None, {}), (1, None, {}), (4, 800, {"t": 400}), (None, None, {"t": 500, "u": 300})]
)
def test_a_store_agrees_with_a_dictionary(make_store: MakeStore, limits: Limits) -> None:
    model, draw = NaiveStore(*limits), random.Random(0)
    store = make_store(clock=lambda: model.now, capacity=Capacity(limits[0], limits[1], limits[2].get))
    told: list[str] = []
    store.removal_listeners.append(lambda gone: told.extend(each.id for each in gone))
    kinds = ["put"] * 3 + ["hit"] * 2 + ["find", "pin", "unpin", "remove", "expire", "expire now", "wait"]
    for number in range(50):
        kind, key, before = draw.choice(kinds), draw.choice("abcdef"), model.ids()
        entry = model.kept[key].entry if key in model.kept else None
        told.clear()
        if kind == "put":
            entries = [new_entry(draw, number, model.now) for _ in range(draw.choice([1, 1, 3]))]
            puts = [NewEntry(entry, np.ones(3, np.float32), "e") for entry in entries]
            wanted = model.put(entries, lambda entry: NewEntry(entry, np.ones(3, np.float32)).size)
            assert sorted(gone.id for gone in store.put_many(puts).removed) == sorted(told) == sorted(wanted)
        elif kind == "wait":
            model.now += draw.choice([draw.randrange(150), draw.randrange(150), -3600, 3600])
        elif kind == "expire":
            model.expire()
            assert {gone.id for gone in store.remove_expired()} == before - model.ids()
        elif kind == "find":
            found, expected = store.find(key), model.find(key)
            assert (found and found.id) == (expected and expected.id)
        elif entry is None:
            continue
        elif kind == "hit":
            store.record_hit(entry.id)
            model.hit(key)
        elif kind == "remove":
            assert [gone.id for gone in store.delete([entry.id])] == [entry.id]
            model.remove(key)
        elif kind == "expire now":
            assert store.expire_now([entry.id]) == (entry.expires > model.now)
            model.expire_now(key)
        else:
            store.pin(entry.id, pinned=kind == "pin")
            model.pin(key, kind == "pin")
        if draw.random() < 0.5:
            continue  # The list writes the counts of hits, which evictions must know without it.
        order, listed = model.eviction_order(), store.eviction_order(100)
        assert [each.entry.id for each in listed] == [each.entry.id for each in order], kind
        assert [each.priority for each in listed] == pytest.approx(
            [None if each.pinned else each.priority for each in order]
        )
        freshness = {id: question.freshness for id, question in store.questions(list(model.ids())).items()}
        assert freshness == {each.entry.id: model.freshness(each.entry) for each in order}
    order, listed = model.eviction_order(), store.eviction_order(100)
    assert {entry.id: (entry.hits, entry.expires) for entry in store.list_entries()} == {
        each.entry.id: (each.hits, each.entry.expires) for each in order
    }
    assert set(store.pinned_ids()) == {each.entry.id for each in order if each.pinned}
    assert store.stats().entry_bytes == sum(each.size for each in order) == sum(each.bytes for each in listed)


@pytest.mark.parametrize("capacity", [Capacity(entries=5), Capacity(tenant_limit=lambda client: 300)])
def test_an_eviction_knows_all_hits(make_store: MakeStore, capacity: Capacity) -> None:
    store = make_store(capacity=capacity)
    for number in range(20):
        store.put(make_entry(f"question {number:02d}", id=f"{number:02d}", completion_tokens=1))
        store.record_hit("00")
        store.record_hit("00")
    assert "00" in store.ids()
    assert 1 < store.count() < 10


def test_equal_entries_are_evicted_in_the_order_of_their_storage(make_store: MakeStore) -> None:
    store = make_store(capacity=Capacity(entries=5))
    entries = [make_entry(f"question {number:02d}") for number in range(12)]
    for entry in entries[:6]:
        store.put(entry)
    store.put_many([NewEntry(entry) for entry in entries[6:]])
    assert set(store.ids()) == {entry.id for entry in entries[7:]}


def test_a_lower_limit_applies_to_existing_entries(make_store: MakeStore) -> None:
    store = make_store()
    for number in range(20):
        store.put(make_entry(f"question {number}"))
    store.close()
    again = make_store(again=True, capacity=Capacity(entries=5))
    again.put(make_entry("one more"))
    assert again.count() == 5
    assert again.find(make_entry("one more").key) is not None


FILTERS = [
    (EntryFilter(tag="x"), "ac"),
    (EntryFilter(tag="X"), ""),
    (EntryFilter(tag="x", model="m1"), "c"),
    (EntryFilter(key="k1"), "bc"),
    (EntryFilter(prompt="What"), "ab"),
    (EntryFilter(search="WHAT"), "abc"),
    (EntryFilter(search="100%"), "c"),
    (EntryFilter(older_than=500.0), "a"),
    (EntryFilter(namespace="n0"), "a"),
    (EntryFilter(tenant="client:one"), "a"),
    (EntryFilter(tenant="one"), "a"),
    (EntryFilter(tenant="on"), ""),
    (EntryFilter(tenant="0f0f"), "b"),
    (EntryFilter(endpoint="library"), "c"),
    (EntryFilter(endpoint="librar", tag="x"), ""),
    (EntryFilter(), "abc"),
]


def test_entries_are_listed_and_deleted_by_a_filter(make_store: MakeStore) -> None:
    store = make_store(clock=lambda: 2000.0)
    one = {"model": "m0", "tags": ("x", "y"), "created": 1400.0, "namespace": "n0", "tenant": "client:one"}
    entries = [
        make_entry("What is a?", id="a", key="k01", **one),
        make_entry("What is b?", id="b", key="k11", model="m0", tags=("y",), created=1600.0, tenant="0f0f"),
        make_entry("Is 100% what?", id="c", key="k12", model="m1", tags=("x",), created=1700.0, endpoint="library"),
    ]
    for where, expected in FILTERS:
        store.put_many([NewEntry(entry) for entry in entries])
        assert {entry.id for entry in store.list_entries(where)} == set(expected)
        assert {gone.id for gone in store.delete(store.ids(where))} == set(expected)
        assert store.count() == 3 - len(expected)


def test_the_reasons_of_the_eviction_order(make_store: MakeStore) -> None:
    store = make_store(clock=lambda: 2000.0)
    store.put(make_entry("over", expires=1500.0))
    store.put(make_entry("stale", expires=1500.0, stale_if_error=1000))
    store.put(make_entry("fresh"))
    reasons = {each.entry.prompt: each.reason for each in store.eviction_order(9)}
    assert reasons == {"over": "expired", "stale": "low priority", "fresh": "low priority"}
    assert (store.stats().expired, store.stats().stale) == (2, 1)


def test_wrong_totals_of_a_damaged_file_block_no_write(make_store: MakeStore) -> None:
    store = make_store(capacity=Capacity(entries=3))
    store.put(make_entry("one"))
    with store.database.transaction() as run:
        run("update totals set entries = 50", {})
    store.put_many([NewEntry(make_entry("two")), NewEntry(make_entry("three"))])
    assert "three" in {entry.prompt for entry in store.list_entries()}


def test_a_lowered_limit_is_reached_in_steps(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproxy.index.store.eviction.MAX_EVICTED", 50)
    store = make_store()
    store.put_many([NewEntry(make_entry(f"q{number}", key=f"k{number}")) for number in range(200)])
    counts = []
    store = make_store(again=True, capacity=Capacity(20))
    for number in range(6):
        store.put(make_entry(f"new {number}", key=f"new{number}"))
        counts.append(store.count())
    # No write waits for the eviction of all entries, and the limit holds soon.
    assert counts[0] >= 130
    assert counts[-1] == 20
    assert store.find("new5") is not None
