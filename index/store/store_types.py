"""The arguments and results of the store's methods."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from kvproxy.index.entry import Entry, Freshness

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Conditions on entries, all of which must hold. None is no condition."""

    namespace: str | None = None  # Start of the digest.
    key: str | None = None  # Start of the digest.
    model: str | None = None
    tag: str | None = None
    prompt: str | None = None  # Start of the prompt.
    search: str | None = None  # Part of the prompt, ignoring case.
    older_than: float | None = None  # Minimum age in seconds.
    tenant: str | None = None
    endpoint: str | None = None
    expires_after: float | None = None  # Seconds since the epoch.

    def __str__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        hidden = ("prompt", "search")
        parts = [f"{name}={'(words)' if name in hidden else v}" for name, v in values.items() if v is not None]
        return ", ".join(parts) or "all"


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """An entry in the eviction order, which starts with expired entries and ends with pinned entries.

    `priority` is None if the entry is pinned.
    """

    entry: Entry
    reason: Literal["expired", "low priority", "pinned"]
    priority: float | None
    bytes: int

    def summary(self) -> dict[str, Any]:
        return self.entry.summary() | {"reason": self.reason, "priority": self.priority, "bytes": self.bytes}


ALL_ENTRIES = EntryFilter()
UsageKey = Literal["tenant", "model", "endpoint", "tag"]


@dataclass(frozen=True, slots=True)
class StorageUsage:
    name: str
    entries: int
    bytes: int
    hits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """Statistics of a store.

    Attributes:
        models: number of models, without answers of the library, which have none.
        expired: number of entries past their lifetime, of which `stale` may still be served.
        hits: hits of all entries since each was stored.
        completion_tokens_saved, prompt_tokens_saved: known tokens of these hits; None if those of all hits are unknown.
        entry_bytes: size of the entries; `bytes` is that of the database on disk.
        max_entries, max_bytes: the limits; None without one.
        tags: number of entries with each tag.
        path: file or database.
    """

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


@dataclass(frozen=True, slots=True)
class AnswerComputation:
    """The computation of an answer, which is not stored if an invalidation covers the computation after its start.

    Attributes:
        began: `Store.last_invalidation` at the start; 0 if it is unknown, so that all known invalidations count.
        tags: None if they are unknown, so that each tag counts.
    """

    key: str
    namespace: str
    began: int
    tags: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry to store. `computation` is None if no earlier invalidation can cover it."""

    entry: Entry
    vector: "np.ndarray | None" = None  # Unit vector of the prompt's last turn, `[dim]` float32.
    embedder: str = ""  # Name of the embedder that computed the vector.
    computation: AnswerComputation | None = None

    @property
    def size(self) -> int:
        entry, dim = self.entry, 0 if self.vector is None else len(self.vector)
        return len(entry.request) + len(entry.response) + len(entry.prompt.encode()) + 4 * dim + 1


@dataclass(frozen=True, slots=True)
class StoredQuestion:
    """The part of an entry that semantic search needs; `vector` is that of the searched text, `[dim]`, if a search found it."""

    id: str
    namespace: str
    prompt: str
    freshness: Freshness
    answer: str = ""  # Class of the answer, see `answer_classes`.
    vector: "np.ndarray | None" = field(default=None, compare=False, repr=False)


RemovalReason = Literal["expired", "evicted", "removed", "replaced"]


@dataclass(frozen=True, slots=True)
class RemovedEntry:
    """An entry that was removed, or that was not stored because it exceeds the capacity."""

    id: str
    namespace: str
    numbers: tuple[int, ...] = ()  # Serial numbers of its vectors, one for each embedder.
    key: str = ""
    reason: RemovalReason | None = None  # None if the entry was not stored.


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of `StoreWriter.put_many`: the serial number of each entry's vector, and the removed entries.

    The number is None for an entry without a vector. Numbers ascend, and are never reused.
    """

    numbers: tuple[int | None, ...]
    removed: tuple[RemovedEntry, ...]


@dataclass(frozen=True, slots=True)
class Capacity:
    """The maximum size of a store; None is unlimited."""

    entries: int | None = None
    bytes: int | None = None  # Sum of `NewEntry.size`.
    # Returns a client's limit in bytes, which the tenants `CLIENT` and `CLIENT/USER` share. Called on the writing thread.
    tenant_limit: Callable[[str], int | None] | None = None
