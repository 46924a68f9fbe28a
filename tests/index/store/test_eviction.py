"""Storage, expiry, and eviction agree with a dictionary that follows the same rules."""

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvproxy.index.entry import Entry
from kvproxy.index.store import Capacity, EntryFilter, NewEntry
from tests.index.conftest import MakeStore
from tests.index.entries import make_entry
from tests.reference.naive_store import NaiveStore

KEYS = st.sampled_from("abcdefgh")
# The length of the response, its tokens, its lifetime, and its two stale periods.
NEW = st.tuples(
    KEYS,
    st.integers(0, 300),
    st.integers(0, 50),
    st.integers(1, 400),
    st.sampled_from("tu"),
    st.sampled_from([(0, 0), (90, 0), (0, 150), (100, 40)]),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(NEW, min_size=1, max_size=3)),
        st.tuples(st.sampled_from(["find", "hit", "remove", "expire now", "pin", "unpin"]), KEYS),
        st.tuples(st.just("wait"), st.integers(1, 200)),
        st.tuples(st.just("expire")),
    ),
    max_size=25,
)
LIMITS = st.tuples(
    st.none() | st.integers(1, 6),
    st.none() | st.integers(100, 900),
    st.dictionaries(st.sampled_from("tu"), st.integers(0, 700)),
)


def new_entry(number: int, now: float, drawn: Any) -> Entry:
    key, length, tokens, lifetime, tenant, (revalidate, error) = drawn
    return make_entry(
        key,
        id=f"{number:032x}",
        key=key,
        tenant=tenant,
        response=json.dumps("x" * length).encode(),
        completion_tokens=tokens,
        created=now,
        expires=now + lifetime,
        stale_while_revalidate=revalidate,
        stale_if_error=error,
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, LIMITS)
def test_a_store_agrees_with_a_dictionary(
    make_store: MakeStore, steps: list[Any], limits: tuple[Any, Any, Any]
) -> None:
    model = NaiveStore(*limits)
    store = make_store(clock=lambda: model.now, capacity=Capacity(limits[0], limits[1], limits[2].get))
    told: list[str] = []
    store.removal_listeners.append(lambda gone: told.extend(each.id for each in gone))
    numbers = itertools.count()
    for step in steps:
        match step:
            case "put", drawn:
                puts = [
                    NewEntry(new_entry(next(numbers), model.now, each), np.ones(3, np.float32), "e") for each in drawn
                ]
                wanted = set[str]().union(*(model.put(put.entry, put.size) for put in puts))
                told.clear()
                assert sorted(gone.id for gone in store.put_many(puts).removed) == sorted(told) == sorted(wanted)
            case "find", key:
                found = store.find(key)
                assert (found and found.id) == ((expected := model.find(key)) and expected.id)
                if key in model.kept:
                    entry = model.kept[key].entry
                    assert store.questions([entry.id])[entry.id].freshness == entry.freshness(model.now)
            case "hit", key if key in model.kept:
                store.record_hit(model.kept[key].entry.id)
                store.flush()
                model.hit(key)
            case "remove", key:
                there = [model.kept[key].entry.id] if key in model.kept else []
                assert [gone.id for gone in store.delete(there)] == there
                if there:
                    model.remove(key)
            case "expire now", key if key in model.kept:
                fresh = model.kept[key].entry.expires > model.now
                assert store.expire_now([model.kept[key].entry.id]) == fresh
                model.expire_now(key)
                assert store.get(model.kept[key].entry.id).expires == model.kept[key].entry.expires
            case ("pin" | "unpin") as kind, key if key in model.kept:
                store.pin(model.kept[key].entry.id, pinned=kind == "pin")
                model.pin(key, kind == "pin")
            case "wait", seconds:
                model.now += seconds
            case ("expire",):
                before = {kept.entry.id for kept in model.kept.values()}
                model.expire()
                went = before - {kept.entry.id for kept in model.kept.values()}
                assert {gone.id for gone in store.expire()} == went
    order = model.eviction_order()
    listed = store.eviction_order(100)
    assert [(each.entry.id, each.entry.hits) for each in listed] == [(each.entry.id, each.hits) for each in order]
    assert [each.priority for each in listed] == pytest.approx([each.priority for each in order])
    assert set(store.pinned()) == {each.entry.id for each in order if each.pinned}
    assert store.count() == len(order)
    assert store.stats()["entry_bytes"] == sum(each.size for each in order) == sum(each.bytes for each in listed)
    store.close()


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
    (EntryFilter(), "abc"),
]


def test_entries_are_listed_and_deleted_by_a_filter(make_store: MakeStore) -> None:
    store = make_store(clock=lambda: 2000.0)
    one = {"model": "m0", "tags": ("x", "y"), "created": 1400.0, "namespace": "n0", "tenant": "client:one"}
    entries = [
        make_entry("What is a?", id="a", key="k01", **one),
        make_entry("What is b?", id="b", key="k11", model="m0", tags=("y",), created=1600.0, tenant="0f0f"),
        make_entry("Is 100% what?", id="c", key="k12", model="m1", tags=("x",), created=1700.0),
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
    assert (store.stats()["expired"], store.stats()["stale"]) == (2, 1)


def test_wrong_totals_of_a_damaged_file_block_no_write(make_store: MakeStore) -> None:
    store = make_store(capacity=Capacity(entries=3))
    store.put(make_entry("one"))
    with store.database.transaction() as run:
        run("update totals set entries = 50", {})
    store.put_many([NewEntry(make_entry("two")), NewEntry(make_entry("three"))])
    assert "three" in {entry.prompt for entry in store.list_entries()}
