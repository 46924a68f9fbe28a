"""Vector search by namespace in both databases agrees with the stored vectors, also after restarts and damage."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.index.search.open_vector_search import open_vector_search
from kvproxy.index.search.vector_search import FaissSearch, VectorSearch
from kvproxy.index.store import NewEntry, RemovedEntry, Store, open_store
from kvproxy.index.store.postgres.vector_search import PostgresSearch
from tests.index.conftest import MakeStore
from tests.index.entries import indexed_numbers, make_entry, stored_vectors
from tests.index.search.test_vector_index import DIM, unit


def neighbours_of(store: Store) -> VectorSearch:
    if not store.remote:
        found: VectorSearch = FaissSearch(store, "e", DIM, min_indexed=20, flat_limit=100)
    else:
        found = open_vector_search(store, "e", DIM)
    found.load()
    return found


def keep(store: Store, near: VectorSearch, vectors: np.ndarray, namespace: str, first: int = 0) -> list[str]:
    ids = [f"{namespace}{number:031x}" for number in range(first, first + len(vectors))]
    puts = [
        NewEntry(make_entry(id, id=id, key=id, namespace=namespace), vector, "e")
        for id, vector in zip(ids, vectors, strict=True)
    ]
    near.index_entries(puts, store.put_many(puts))
    return ids


@pytest.mark.parametrize("count", [5, 60, 130])
def test_a_search_finds_the_nearest_of_its_namespace(make_store: MakeStore, count: int) -> None:
    store = make_store()
    near = neighbours_of(store)
    assert not near.has_vectors("a")
    vectors = unit(count)
    for namespace in ("a", "b"):
        for start in range(0, count, 50):
            keep(store, near, vectors[start : start + 50], namespace, start)
    assert near.has_vectors("a")
    query = unit(1, 9)[0]
    best = np.argsort(-(vectors @ query))[:3]
    ids = [f"b{number:031x}" for number in best]
    found = near.search("b", query, 3)
    assert [head.id for head, _ in found] == ids
    assert [score for _, score in found] == pytest.approx((vectors @ query)[best].tolist(), abs=1e-5)
    assert np.array_equal([head.vector for head, _ in found], vectors[best])
    assert near.search("c", query, 3) == []
    near.remove(store.delete(ids))
    assert not set(ids) & {head.id for head, _ in near.search("b", query, 10)}
    near.close()


def test_changes_by_another_proxy_are_visible_in_postgres(empty_postgres: str, open_file: MakeStore) -> None:
    one, other = open_file(empty_postgres), open_file(empty_postgres)
    mine, theirs = neighbours_of(one), neighbours_of(other)
    vectors = unit(3)
    ids = keep(one, mine, vectors, "a")
    assert theirs.has_vectors("a")
    assert theirs.search("a", vectors[1], 1)[0][0].id == ids[1]
    assert other.find(ids[0]) == one.find(ids[0])
    other.delete([ids[1]])
    assert mine.search("a", vectors[1], 1)[0][0].id != ids[1]


def graphs_in(store: Any) -> int:
    sql = "select count(*) as there from pg_indexes where indexname like 'near_%' and indexdef like '%hnsw%'"
    with store.database.connection() as connection:
        return int(connection.execute(sql).fetchone()["there"])


def test_a_large_namespace_has_its_own_graph_in_postgres(empty_postgres: str, open_file: MakeStore) -> None:
    store = open_file(empty_postgres)
    near = PostgresSearch(store, "e", DIM, min_graph=100)
    vectors = unit(500)
    keep(store, near, vectors, "a")
    keep(store, near, unit(50, 1), "b")
    near.maintain()
    near.maintain()
    assert graphs_in(store) == 1
    found = [near.search("a", vectors[number], 1)[0][0].id for number in range(0, 500, 20)]
    assert found == [f"a{number:031x}" for number in range(0, 500, 20)]
    near.remove([RemovedEntry("x", "a")])
    # Only a proxy with the same embedder removes the graph, when the namespace is small.
    PostgresSearch(store, "another", DIM, min_graph=100).maintain()
    store.delete([f"a{number:031x}" for number in range(400)])
    near.maintain()
    assert graphs_in(store) == 1
    store.delete([f"a{number:031x}" for number in range(400, 480)])
    near.maintain()
    assert graphs_in(store) == 0
    assert near.search("a", vectors[490], 1)[0][0].id == f"a{490:031x}"


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(2, 60),
    small=st.sampled_from([5, 1000]),
    flat_limit=st.sampled_from([10, 1000]),
    seed=st.integers(0, 2**16),
    limit=st.integers(1, 30),
    data=st.data(),
)
def test_a_search_agrees_bitwise_with_the_stored_vectors(
    count: int, small: int, flat_limit: int, seed: int, limit: int, data: st.DataObject
) -> None:
    """The namespace is read from the store, compared in a flat index, or searched by a graph."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder) / "r.db", clock=lambda: 1000.0)
        near = FaissSearch(store, "e", DIM, min_indexed=small, flat_limit=flat_limit)
        near.load()
        expiries = data.draw(st.lists(st.sampled_from([900.0, 2000.0]), min_size=count, max_size=count))
        puts = [
            NewEntry(make_entry(f"q {n}", id=f"{n}", key=f"{n}", namespace="a", expires=expires), vector, "e")
            for n, (vector, expires) in enumerate(zip(unit(count, seed), expiries, strict=True))
        ]
        parts = data.draw(st.integers(1, count - 1))
        for part in (puts[:parts], puts[parts:]):
            near.index_entries(part, store.put_many(part))
            id = f"other {part[0].entry.id}"
            store.put(make_entry("other", id=id, key=id, namespace="b"), part[0].vector, "e")
            store.set_answer_class(part[0].entry.id, "a", data.draw(st.sampled_from("xy")), "t")
        near.wait_for_rebuilds()
        # As if another process removed entries: the index is not notified.
        gone = data.draw(st.sets(st.integers(0, count - 1), max_size=3))
        store.delete([f"{number}" for number in gone if number % 2])
        store.unindex([f"{number}" for number in gone])
        query = unit(1, seed + 1)[0]
        numbers, kept = near.stored_vectors("a")
        ids = stored_vectors(store, "a")
        cosines = {ids[number]: float(row @ query) for number, row in zip(numbers.tolist(), kept, strict=True)}
        best = sorted(cosines, key=lambda id: -cosines[id])
        found = near.search("a", query, limit)
        heads = store.questions(best)
        assert found == [(heads[head.id], cosines[head.id]) for head, _ in found]
        if not gone:
            assert [head.id for head, _ in found] == best[:limit]
        near.close()
        store.close()


def test_a_namespace_has_an_index_in_memory_while_it_is_large(store: Store) -> None:
    near = neighbours_of(store)
    assert isinstance(near, FaissSearch)
    ids = keep(store, near, unit(19), "a")
    assert near.indexes == {}
    ids += keep(store, near, unit(600, 1), "a", 19)
    near.wait_for_rebuilds()
    near.remove(store.delete(ids[:300]))
    near.wait_for_rebuilds()
    # Deleted vectors are removed from the graph in the background.
    assert near.indexes["a"].is_graph
    assert len(near.indexes["a"]._segment) == 319
    assert indexed_numbers(near.indexes["a"]) == set(stored_vectors(store, "a"))
    near.remove(store.delete(ids[300:-5]))
    assert near.indexes == {}
    assert len(near.search("a", unit(1)[0], 9)) == 5
    near.close()
