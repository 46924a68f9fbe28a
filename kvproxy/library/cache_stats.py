"""The types of the figures that `stats()` of the library returns."""

from typing import TypedDict


class GetStats(TypedDict):
    """Results of `get` since the opening; `shared` counts calls of `get_or_set` that received another call's answer."""

    exact: int
    semantic: int
    miss: int
    shared: int


class SemanticStats(TypedDict):
    """Decisions on similar questions, see `SemanticStatistics`; a value is None without semantic hits."""

    policy: str | None
    shadow: bool | None
    lookups: dict[str, int] | None
    compared: dict[str, int] | None
    learned: dict[str, int]
    learning: dict[str, float | None] | None


class CacheStats(TypedDict):
    """The figures of an open cache; for those of the store, see `StoreStatistics`."""

    entries: int
    namespaces: int
    models: int
    hits: int
    expired: int
    stale: int
    completion_tokens_saved: int | None
    prompt_tokens_saved: int | None
    entry_bytes: int
    max_entries: int | None
    max_bytes: int | None
    tags: dict[str, int]
    bytes: int | None
    path: str
    gets: GetStats
    semantic: SemanticStats
