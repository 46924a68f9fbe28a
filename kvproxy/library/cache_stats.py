"""The figures that `stats()` of the library returns."""

from dataclasses import asdict
from typing import TypedDict, cast

from kvproxy.index.response_cache import ResponseCache


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


def collect_stats(cache: ResponseCache, gets: GetStats, lookups: dict[str, int], *, is_shadow: bool) -> CacheStats:
    """Return the figures of the store, of its learning, and of the results since the opening. It reads the store."""
    semantic = cache.semantic
    learning = None if semantic is None or semantic.learning is None else semantic.learning.summary()
    decisions = {
        "policy": None if semantic is None else semantic.policy.name,
        "shadow": None if semantic is None else is_shadow,
        "lookups": None if semantic is None else lookups,
        "compared": None,  # A library sees no fresh answers.
        "learned": cache.store.observations.summary(),
        "learning": None if learning is None else asdict(learning),
    }
    return cast("CacheStats", asdict(cache.store.stats()) | {"gets": gets, "semantic": decisions})
