"""Behaviour of all stores: SQLite, encrypted SQLite, and PostgreSQL."""

from dataclasses import replace

import numpy as np
import pytest

from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.store import AnswerComputation, EntryFilter, NewEntry, writer
from tests.index.conftest import MakeStore
from tests.index.entries import make_entry


def test_reopening_finds_everything(make_store: MakeStore) -> None:
    store = make_store(clock=lambda: 2000.0)
    entry = make_entry(tags=("t",))
    store.put(entry, np.arange(3, dtype=np.float32), "e")
    store.record_hit(entry.id)
    store.close()
    again = make_store(again=True, clock=lambda: 2000.0)
    found = again.get(entry.id)
    assert (found.prompt, found.hits, found.last_hit, found.tags) == (entry.prompt, 1, 2000.0, ("t",))
    assert again.missing_vectors("e", 10) == []
    assert again.database.count_intact_responses() == 1


def test_an_entry_is_stored_unchanged(make_store: MakeStore) -> None:
    store = make_store()
    entry = make_entry("Ünïcode 🚀", request=bytes(range(256)), semantic=False, tags=("a, b", "é"), last_hit=None)
    store.put(entry)
    assert store.find(entry.key) == store.get(entry.id) == entry
    assert isinstance(store.get(entry.id).semantic, bool)


def test_many_are_put_in_one_transaction_or_not_at_all(make_store: MakeStore) -> None:
    store = make_store()
    written = store.put_many([NewEntry(make_entry(f"q {number}"), np.ones(3, np.float32), "e") for number in range(30)])
    assert list(written.numbers) == sorted(written.numbers)
    assert store.count() == 30
    with pytest.raises(Exception, match=r".*"):
        store.put_many([NewEntry(make_entry("fine")), NewEntry(make_entry("broken", model=object()))])
    assert store.count() == 30
    assert store.find(make_entry("fine").key) is None


def test_ids_are_resolved_by_prefix(make_store: MakeStore) -> None:
    store = make_store()
    for id in ("ab1", "ab2", "b"):
        store.put(make_entry(id, id=id))
    assert store.ids_with_prefix("ab") == ["ab1", "ab2"]
    assert store.ids_with_prefix("ab2") == ["ab2"]
    assert store.ids_with_prefix("a%") == store.ids_with_prefix("_") == []


def test_missing_vectors_are_listed_until_they_are_added(make_store: MakeStore) -> None:
    store = make_store()
    entries = [make_entry(f"q {number}", semantic=number != 3) for number in range(5)]
    for entry in entries:
        store.put(entry)
    # One write can contain vectors of several embedders.
    store.put_many([NewEntry(make_entry(name), np.ones(3, np.float32), name) for name in ("another", "e")])
    missing = store.missing_vectors("e", 3)
    assert len(missing) == 3
    while missing:
        store.add_vectors([NewEntry(entry, np.ones(3, np.float32), "e") for entry in missing])
        missing = store.missing_vectors("e", 3)
    assert store.missing_vectors("another", 10) != []
    # An entry removed meanwhile gets no vector.
    store.delete([entries[0].id])
    store.add_vectors([NewEntry(entries[0], np.ones(3, np.float32), "e")])
    assert store.missing_vectors("e", 10) == []


def test_similarities_are_cosines_of_the_stored_vectors(make_store: MakeStore) -> None:
    store = make_store()
    entries = [make_entry(text) for text in ("one", "two", "three", "four")]
    for entry, vector in zip(entries, np.eye(3, 4, dtype=np.float32)[[0, 0, 1]], strict=False):
        store.put(entry, vector, "hash")
    own, equal, other, without = (entry.id for entry in entries)
    store.put(entries[3])
    assert store.similarities(own, [equal, other, without, "none"]) == {equal: 1.0, other: 0.0}
    assert store.similarities(without, [own]) == {}
    nearest = store.nearest(np.eye(1, 4, dtype=np.float32)[0], "hash", 2)
    assert ({id for id, _ in nearest}, {cosine for _, cosine in nearest}) == ({own, equal}, {1.0})
    assert store.nearest(np.eye(1, 4, dtype=np.float32)[0], "other", 2) == []


def test_entries_returns_everything_in_pages(make_store: MakeStore) -> None:
    store = make_store()
    store.put_many([NewEntry(make_entry(f"q {number}", created=float(number // 300))) for number in range(600)])
    prompts = [Entry.from_document(entry.document()).prompt for entry in store.entries()]
    assert len(prompts) == len(set(prompts)) == 600


@pytest.mark.parametrize("where", [EntryFilter(), EntryFilter(search="QUESTION")])
def test_pages_of_a_listing_are_complete(make_store: MakeStore, where: EntryFilter) -> None:
    store = make_store(clock=lambda: 2000.0)
    for number in range(11):
        store.put(make_entry(f"question {number}", created=1000.0 + number % 4))
    every = store.list_entries(where)
    assert [entry for start in range(0, 11, 3) for entry in store.list_entries(where, limit=3, offset=start)] == every
    assert store.list_entries(where, offset=4) == every[4:]
    going = store.eviction_order(100)
    assert [entry for start in range(0, 11, 4) for entry in store.eviction_order(4, offset=start)] == going


def test_clocks_may_differ_by_a_minute(make_store: MakeStore) -> None:
    store = make_store(clock=lambda: 1000.0)
    for name, created in (("now", 1000.0), ("soon", 1060.0), ("later", 1060.5)):
        store.put(make_entry(name, key=name, created=created, expires=2000.0))
    assert [store.find(name) is not None for name in ("now", "soon", "later")] == [True, True, False]
    for name, created in (("over", 1060.0), ("over and later", 1060.5)):
        store.put(make_entry(name, key=name, created=created, expires=1000.0, stale_if_error=5.0))
    assert [store.find(name) is not None for name in ("over", "over and later")] == [True, False]


def test_a_failed_flush_loses_no_hits(make_store: MakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(clock=lambda: 2000.0)
    entry = make_entry()
    store.put(entry)
    store.record_hit(entry.id)

    def full(**_: object) -> None:
        raise CacheStoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(store.database, "transaction", full)
        with pytest.raises(CacheStoreError, match="full"):
            store.flush()
    store.record_hit(entry.id)
    store.flush()
    assert store.get(entry.id).hits == 2


@pytest.mark.parametrize(
    ("where", "is_stored"),
    [
        (EntryFilter(key="key"), False),
        (EntryFilter(key="key 1"), True),
        (EntryFilter(namespace="name", tag="t"), False),
        (EntryFilter(namespace="other", tag="t"), True),
        (EntryFilter(tag="other"), True),
        (EntryFilter(), False),
        # Conditions on texts and tenants are ignored.
        (EntryFilter(search="other"), False),
        # The answer is younger than that.
        (EntryFilter(older_than=60.0), True),
    ],
)
def test_an_invalidation_covers_earlier_computations(
    make_store: MakeStore, where: EntryFilter, is_stored: bool
) -> None:
    store, entry = make_store(), make_entry(key="key", namespace="namespace", tags=("t", "u"))
    newer = make_entry(id="newer", key="key", namespace="namespace", tags=("t", "u"))
    early = AnswerComputation(entry.key, entry.namespace, store.last_invalidation(), entry.tags)
    assert not store.is_invalidated(early)
    store.invalidate(where)
    late = replace(early, began=store.last_invalidation())
    assert store.is_invalidated(early) == (not is_stored)
    assert not store.is_invalidated(late)
    store.put_many([NewEntry(newer, computation=late)])
    written = store.put_many([NewEntry(entry, computation=early)])
    assert [removed.id for removed in written.removed] == ["newer" if is_stored else entry.id]
    assert store.find("key").id == (entry.id if is_stored else "newer")


def test_computations_with_unknown_tags_or_an_unknown_start_are_covered(make_store: MakeStore) -> None:
    store = make_store()
    computation = AnswerComputation("key", "namespace", store.last_invalidation())
    store.invalidate(EntryFilter(key="other", tag="t"))
    assert not store.is_invalidated(computation)
    store.invalidate(EntryFilter(tag="t"))
    assert store.is_invalidated(computation)
    assert store.is_invalidated(replace(computation, began=0))


def test_the_last_invalidations_are_remembered(make_store: MakeStore) -> None:
    store = make_store()
    computation = AnswerComputation("key", "namespace", store.last_invalidation(), ())
    last = replace(computation, began=computation.began + writer._MAX_INVALIDATIONS + 2)
    with store.database.transaction() as run:
        rows = [{"key": f"other {number}", "namespace": "", "tag": ""} for number in range(writer._MAX_INVALIDATIONS)]
        run.executemany(writer._INVALIDATE.removesuffix(" returning number"), rows)
    assert not store.is_invalidated(computation)
    store.invalidate(EntryFilter(key="another"))
    assert store.database.query("select count(*) as number from invalidations") == [
        {"number": writer._MAX_INVALIDATIONS}
    ]
    # An earlier one, which is forgotten, may have covered it.
    assert store.is_invalidated(computation)
    assert not store.is_invalidated(last)
