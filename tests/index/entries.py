"""Entries for tests."""

from typing import Any

from kvproxy.index.entry import Entry, new_id
from kvproxy.index.search.vector_index import VectorIndex
from kvproxy.index.store import Store

SERVABLE = b'{"choices": [{"index": 0, "message": {"content": "yes"}, "finish_reason": "stop"}]}'
"""A response that an import accepts."""


def make_entry(prompt: str = "What is a block?", **fields: Any) -> Entry:
    values: dict[str, Any] = {
        "id": new_id(),
        "key": f"key of {fields.get('namespace', 'n')} {prompt}",
        "namespace": "n",
        "tenant": "public",
        "model": "demo",
        "endpoint": "chat",
        "prompt": prompt,
        "semantic": True,
        "request": b'{"model": "demo"}',
        "response": b'{"choices": []}',
        "created": 1000.0,
        "expires": 1e12,
        "completion_tokens": 5,
    }
    return Entry(**(values | fields))


def stored_vectors(store: Store, namespace: str = "n", embedder: str = "e") -> dict[int, str]:
    """Return the ids of the entries with a vector, by its number."""
    sql = "select number, id from vectors where namespace = :namespace and embedder = :embedder"
    rows = store.database.query(sql, {"namespace": namespace, "embedder": embedder})
    return {row["number"]: row["id"] for row in rows}


def indexed_numbers(index: VectorIndex) -> set[int]:
    """Return the numbers of the vectors that an index has not deleted."""
    return set(index._segment.numbers.tolist()) - index._dead
