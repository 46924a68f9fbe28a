"""Chooses the vector search of a store."""

from kvproxy.index.search.vector_search import FaissSearch, VectorSearch
from kvproxy.index.store import Store


def open_vector_search(store: Store, embedder: str, dim: int) -> VectorSearch:
    if not store.remote:
        return FaissSearch(store, embedder, dim)
    # Only PostgreSQL requires its driver.
    from kvproxy.index.store.postgres.vector_search import PostgresSearch

    return PostgresSearch(store, embedder, dim)
