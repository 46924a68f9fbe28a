from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from kvproxy.index.entry import Entry, Freshness


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Conditions on entries, all of which must hold; a condition of None matches every entry.

    Attributes:
        namespace, key: the digest begins with this text.
        prompt: the prompt begins with this text.
        search: the prompt contains this text, ignoring case.
        older_than: minimum age in seconds.
    """

    namespace: str | None = None
    key: str | None = None
    model: str | None = None
    tag: str | None = None
    prompt: str | None = None
    search: str | None = None
    older_than: float | None = None
    tenant: str | None = None

    def __str__(self) -> str:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        hidden = ("prompt", "search")
        parts = [f"{name}={'(words)' if name in hidden else v}" for name, v in values.items() if v is not None]
        return ", ".join(parts) or "all"


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """An entry in the eviction order, which starts with expired entries and ends with pinned entries."""

    entry: Entry
    reason: Literal["expired", "low priority", "pinned"]
    priority: float
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


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry to store.

    Attributes:
        vector: unit vector of the prompt's last turn, `[dim]` float32; None stores the entry without a vector.
        embedder: name of the embedder that computed the vector.
    """

    entry: Entry
    vector: np.ndarray | None = None
    embedder: str = ""

    @property
    def size(self) -> int:
        entry, dim = self.entry, 0 if self.vector is None else len(self.vector)
        return len(entry.request) + len(entry.response) + len(entry.prompt.encode()) + 4 * dim + 1


@dataclass(frozen=True, slots=True)
class StoredQuestion:
    """The part of an entry that semantic search needs; `answer` is the class of its answer (see `answer_classes`)."""

    id: str
    namespace: str
    prompt: str
    freshness: Freshness
    answer: str = ""


RemovalReason = Literal["expired", "evicted", "removed", "replaced"]


@dataclass(frozen=True, slots=True)
class RemovedEntry:
    """An entry that was removed, or not stored.

    Attributes:
        numbers: serial numbers of its vectors, one for each embedder; see `WriteResult`.
        reason: None if the entry was not stored, because it exceeds the capacity.
    """

    id: str
    namespace: str
    numbers: tuple[int, ...] = ()
    key: str = ""
    reason: RemovalReason | None = None


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The result of `Store.put_many`.

    Attributes:
        numbers: serial number of each entry's vector; None for an entry without a vector. Numbers ascend, and are never reused.
        removed: replaced and evicted entries, and new entries that were not stored.
    """

    numbers: tuple[int | None, ...]
    removed: tuple[RemovedEntry, ...]


@dataclass(frozen=True, slots=True)
class Capacity:
    """The maximum size of a store; None is unlimited.

    Attributes:
        bytes: maximum sum of `NewEntry.size`.
        tenant_limit: returns a client's limit in bytes; the tenants `CLIENT` and `CLIENT/USER` share it. Called on the
            writing thread.
    """

    entries: int | None = None
    bytes: int | None = None
    tenant_limit: Callable[[str], int | None] | None = None
