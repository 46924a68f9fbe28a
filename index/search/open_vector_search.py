"""Chooses the vector search of a store."""

from kvproxy.index.errors import WrongDimension
from kvproxy.index.search.vector_search import FaissSearch, VectorSearch
from kvproxy.index.store import Store


def open_vector_search(store: Store, embedder: str, dim: int) -> VectorSearch:
    """Return the vector search of an embedder. Raises WrongDimension if its stored vectors have another dimension."""
    search = _open(store, embedder, dim)
    if (stored := search.stored_dim()) not in (None, dim):
        search.close()
        raise WrongDimension(
            f"embedder {embedder!r} has {dim} dimensions, but its stored vectors have {stored}, so it has changed: give it"
            " another name, and all questions are embedded again"
        )
    return search


def _open(store: Store, embedder: str, dim: int) -> VectorSearch:
    if not store.remote:
        return FaissSearch(store, embedder, dim)
    # Only PostgreSQL requires its driver.
    from kvproxy.index.store.postgres.vector_search import PostgresSearch

    return PostgresSearch(store, embedder, dim)
