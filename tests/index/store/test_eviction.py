"""Storage, expiry, and eviction agree with a dictionary that follows the same rules."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvproxy.index.store import Capacity, EntryFilter, NewEntry
from tests.index.conftest import MakeStore
from tests.index.entries import make_entry
from tests.reference.naive_store import NaiveStore

KEYS = st.sampled_from("abcdefgh")
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            KEYS,
            st.integers(0, 300),
            st.integers(0, 50),
            st.integers(1, 400),
            st.sampled_from("tu"),
            st.sampled_from([(0, 0), (90, 0), (0, 150), (100, 40)]),
        ),
        st.tuples(st.sampled_from(["find", "hit", "remove", "expire now"]), KEYS),
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


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, LIMITS)
def test_a_store_agrees_with_a_dictionary(
    make_store: MakeStore, steps: list[Any], limits: tuple[Any, Any, Any]
) -> None:
    model = NaiveStore(*limits)
    store = make_store(clock=lambda: model.now, capacity=Capacity(limits[0], limits[1], limits[2].get))
    for number, step in enumerate(steps):
        match step:
            case "put", key, length, tokens, lifetime, tenant, (revalidate, error):
                entry = make_entry(
                    key,
                    id=f"{number:032x}",
                    key=key,
                    tenant=tenant,
                    response=json.dumps("x" * length).encode(),
                    completion_tokens=tokens,
                    created=model.now,
                    expires=model.now + lifetime,
                    stale_while_revalidate=revalidate,
                    stale_if_error=error,
                )
                written = store.put(entry, np.ones(3, np.float32), "e")
                assert {gone.id for gone in written.removed} == model.put(entry, NewEntry(entry, np.ones(3)).size)
            case "find", key:
                found = store.find(key)
                assert (found and found.id) == ((wanted := model.find(key)) and wanted.id)
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
            case "wait", seconds:
                model.now += seconds
            case ("expire",):
                before = {kept.entry.id for kept in model.kept.values()}
                model.expire()
                went = before - {kept.entry.id for kept in model.kept.values()}
                assert {gone.id for gone in store.expire()} == went
    kept = {each.entry.id: each.hits for each in model.kept.values()}
    assert {entry.id: entry.hits for entry in store.list_entries()} == kept
    assert store.count() == len(kept)
    assert store.stats()["entry_bytes"] == sum(each.size for each in model.kept.values())
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


def test_a_tenants_limit_holds_within_one_write(make_store: MakeStore) -> None:
    store = make_store(capacity=Capacity(of_tenant={"t": 500}.get))
    entries = [make_entry(f"question {number}", tenant="tu"[number % 2]) for number in range(40)]
    store.put_many([NewEntry(entry) for entry in entries])
    sizes = [NewEntry(entry).size for entry in store.list_entries(EntryFilter(tenant="t"))]
    assert 0 < sum(sizes) <= 500 < sum(sizes) + max(sizes)
    assert len(store.ids(EntryFilter(tenant="u"))) == 20


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (EntryFilter(tag="x"), {"a", "c"}),
        (EntryFilter(tag="X"), set()),
        (EntryFilter(tag="x", model="m1"), {"c"}),
        (EntryFilter(key="k1"), {"b", "c"}),
        (EntryFilter(prompt="What"), {"a", "b"}),
        (EntryFilter(search="WHAT"), {"a", "b", "c"}),
        (EntryFilter(search="100%"), {"c"}),
        (EntryFilter(older_than=500.0), {"a"}),
        (EntryFilter(namespace="n0"), {"a"}),
        (EntryFilter(tenant="client:one"), {"a"}),
        (EntryFilter(tenant="one"), {"a"}),
        (EntryFilter(tenant="on"), set()),
        (EntryFilter(tenant="0f0f"), {"b"}),
        (EntryFilter(), {"a", "b", "c"}),
    ],
)
def test_entries_are_listed_and_deleted_by_a_filter(
    make_store: MakeStore, where: EntryFilter, expected: set[str]
) -> None:
    store = make_store(clock=lambda: 2000.0)
    for name, fields in {
        "a": {
            "prompt": "What is a?",
            "key": "k01",
            "model": "m0",
            "tags": ("x", "y"),
            "created": 1400.0,
            "namespace": "n0",
            "tenant": "client:one",
        },
        "b": {"prompt": "What is b?", "key": "k11", "model": "m0", "tags": ("y",), "created": 1600.0, "tenant": "0f0f"},
        "c": {"prompt": "Is 100% what?", "key": "k12", "model": "m1", "tags": ("x",), "created": 1700.0},
    }.items():
        store.put(make_entry(**{"id": name} | fields))
    assert set(store.ids(where)) == expected
    assert {entry.id for entry in store.list_entries(where)} == expected
    assert {gone.id for gone in store.delete(store.ids(where))} == expected
    assert store.count() == 3 - len(expected)


def test_wrong_totals_of_a_damaged_file_block_no_write(make_store: MakeStore) -> None:
    store = make_store(capacity=Capacity(entries=3))
    store.put(make_entry("one"))
    with store.database.transaction() as run:
        run("update totals set entries = 50", {})
    store.put_many([NewEntry(make_entry("two")), NewEntry(make_entry("three"))])
    assert "three" in {entry.prompt for entry in store.list_entries()}


def test_expired_entries_are_evicted_first(make_store: MakeStore) -> None:
    now = 2000.0
    store = make_store(clock=lambda: now, capacity=Capacity(entries=6))
    store.put_many(
        [NewEntry(make_entry(f"old {number}", expires=2500.0, completion_tokens=900)) for number in range(3)]
    )
    lasting = [make_entry(f"lasting {number}", completion_tokens=100) for number in range(3)]
    store.put_many([NewEntry(entry) for entry in lasting])
    now = 3000.0
    new = [make_entry(f"new {number}", completion_tokens=100) for number in range(3)]
    gone = store.put_many([NewEntry(entry) for entry in new]).removed
    assert ({each.why for each in gone}, len(gone)) == ({"expired"}, 3)
    assert {entry.id for entry in store.list_entries()} == {entry.id for entry in lasting + new}


def test_an_entry_evicted_by_a_later_one_of_its_write_is_reported(make_store: MakeStore) -> None:
    store = make_store(capacity=Capacity(entries=4))
    store.put_many(
        [NewEntry(make_entry(f"stored {tokens}", completion_tokens=tokens)) for tokens in (100, 900, 901, 902)]
    )
    told: list[str] = []
    store.removal_listeners.append(lambda gone: told.extend(each.id for each in gone))
    cheap = [make_entry(f"cheap {number}", completion_tokens=1) for number in range(5)]
    gone = store.put_many([NewEntry(entry) for entry in cheap]).removed
    assert {entry.prompt for entry in store.list_entries()} == {"stored 900", "stored 901", "stored 902", "cheap 4"}
    assert {entry.id for entry in cheap[:4]} <= {each.id for each in gone if each.why == "evicted"}
    assert len(gone) == 5
    assert sorted(told) == sorted(each.id for each in gone)
