"""The seam between the response cache and the stores: SQLite and PostgreSQL."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

import numpy as np

from kvproxy.index.entry import Entry, Freshness
from kvproxy.index.store.observations import Observations


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Conditions on entries; None matches all.

    Attributes:
        namespace, key: a prefix of the digest.
        model, tag: the exact name.
        tenant: as in listings, or the name of a client.
        prompt: a prefix of the prompt.
        search: a text in the prompt, ignoring case.
        older_than: age in seconds.
    """

    namespace: str | None = None
    key: str | None = None
    model: str | None = None
    tag: str | None = None
    prompt: str | None = None
    search: str | None = None
    older_than: float | None = None
    tenant: str | None = None

    def description(self, *, texts: bool = True) -> str:
        """Return one line for the list of purges.

        Args:
            texts: include the words of `prompt` and `search`.
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        hidden = () if texts else ("prompt", "search")
        parts = [f"{name}={'(words)' if name in hidden else v}" for name, v in values.items() if v is not None]
        return ", ".join(parts) or "all"


@dataclass(frozen=True, slots=True)
class PurgeRequest:
    """Who removes which entries, as recorded in the list of purges."""

    operator: str
    filter: str


@dataclass(frozen=True, slots=True)
class Purge:
    """A removal by an operator.

    Attributes:
        time: seconds since the epoch.
        soft: the entries were expired, not removed.
        entries: their number.
    """

    time: float
    operator: str
    filter: str
    soft: bool
    entries: int


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """An entry in the order in which a full store removes entries.

    Attributes:
        reason: `low priority` if the eviction policy chooses it.
        priority: see `eviction`.
        bytes: see `NewEntry.size`.
    """

    entry: Entry
    reason: Literal["expired", "low priority", "pinned"]
    priority: float
    bytes: int

    def summary(self) -> dict[str, Any]:
        """Return the JSON object of listings."""
        return self.entry.summary() | {"reason": self.reason, "priority": self.priority, "bytes": self.bytes}


EVERYTHING = EntryFilter()
UsageKey = Literal["tenant", "model", "endpoint", "tag"]


@dataclass(frozen=True, slots=True)
class StorageUsage:
    """Number, bytes, and hits of the entries with one tenant, model, endpoint, or tag."""

    name: str
    entries: int
    bytes: int
    hits: int


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry to store, with the vector of its prompt (`[dim]` float32) and the name of the embedder."""

    entry: Entry
    vector: np.ndarray | None = None
    embedder: str = ""

    @property
    def size(self) -> int:
        """Bytes that count against a capacity: request, response, prompt, and vector."""
        entry, dim = self.entry, 0 if self.vector is None else len(self.vector)
        return len(entry.request) + len(entry.response) + len(entry.prompt.encode()) + 4 * dim + 1


@dataclass(frozen=True, slots=True)
class StoredQuestion:
    """The part of an entry that decides whether it answers a similar question.

    Attributes:
        answer: class of its answer. Entries of one class have equivalent answers.
    """

    id: str
    namespace: str
    prompt: str
    freshness: Freshness
    answer: str = ""


@dataclass(frozen=True, slots=True)
class ClassifiedAnswer:
    """The answer of an entry, for comparisons with other answers.

    Attributes:
        entry: id of the entry.
        name: the class.
        text: digest of the answer without case and punctuation.
        vector: `[dim]` float32.
        embedder: name of the embedder of `vector`.
    """

    entry: str
    namespace: str
    name: str
    text: str
    vector: np.ndarray | None = None
    embedder: str = ""


RemovalReason = Literal["expired", "evicted", "removed", "replaced"]


@dataclass(frozen=True, slots=True)
class RemovedEntry:
    """An entry that was removed, or not stored.

    Attributes:
        numbers: of its vectors.
        why: None if the entry is larger than the capacity.
    """

    id: str
    namespace: str
    numbers: tuple[int, ...] = ()
    key: str = ""
    why: RemovalReason | None = None


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The effect of a write.

    Attributes:
        numbers: of the new vectors, in the order of the new entries; None without a vector. Numbers rise and are never reused.
        removed: the replaced and evicted entries. It includes new entries that are larger than the capacity, and those that a
            later entry of the same write replaced or evicted.
    """

    numbers: tuple[int | None, ...]
    removed: tuple[RemovedEntry, ...]


@dataclass(frozen=True, slots=True)
class Capacity:
    """The maximal size of a store; None is unlimited. `NewEntry.size` defines the bytes.

    Attributes:
        of_tenant: returns the bytes that a tenant's entries may have. The writing thread calls it.
    """

    entries: int | None = None
    bytes: int | None = None
    of_tenant: Callable[[str], int | None] | None = None


class Store(Protocol):
    """The stored responses. Thread-safe. Every method may raise a CacheStoreError."""

    name: str
    """Path or URL, without the password."""
    remote: bool
    """Whether calls cross a network and must not run on the event loop."""

    observations: Observations
    """In the same database."""
    removal_listeners: list[Callable[[Sequence[RemovedEntry]], None]]
    """Called after the commit of a removal, on the thread that removed the entries."""

    def failure(self) -> str | None:
        """Why nothing can be stored or found at the moment; None if the store works."""

    def find(self, key: str) -> Entry | None:
        """The entry with an exact key, if it is fresh or stale, but not expired."""

    def get(self, id: str) -> Entry | None:
        """The entry with an id, expired or not."""

    def questions(self, ids: Sequence[str]) -> dict[str, StoredQuestion]:
        """The questions of entries, by id. Missing entries are omitted."""

    def resolve(self, prefix: str) -> list[str]:
        """The first ten ids that begin with a text."""

    def has_key(self, key: str) -> bool:
        """Whether an entry has an exact key, expired or not."""

    def fits(self, entry: Entry) -> bool:
        """Whether an entry is not larger than the capacity and its tenant's limit. Reads no data."""

    def put_many(self, puts: Sequence[NewEntry]) -> WriteResult:
        """Store entries in one durable transaction. They replace entries with the same keys.

        Entries with the lowest priorities are evicted if a limit would be exceeded; see `eviction`.
        """

    def delete(self, ids: Sequence[str], by: PurgeRequest | None = None) -> list[RemovedEntry]:
        """Remove entries and return the existing ones.

        Args:
            by: recorded in the list of purges, in the same transaction.
        """

    def expire_now(self, ids: Sequence[str], by: PurgeRequest | None = None) -> int:
        """Expire fresh entries and return their number. Their stale periods begin now.

        Args:
            by: as for `delete`.
        """

    def purges(self, limit: int) -> list[Purge]:
        """Removals by operators, newest first. The store remembers the last thousand."""

    def pin(self, id: str, *, pinned: bool) -> None:
        """Evict an entry after all unpinned ones, or undo that. A pinned entry expires like any other."""

    def pinned(self) -> list[str]:
        """Ids of the pinned entries."""

    def unindex(self, ids: Sequence[str]) -> list[RemovedEntry]:
        """Exclude entries from semantic search: delete their vectors. Exact requests still find them."""

    def expire(self) -> list[RemovedEntry]:
        """Remove some thousand expired entries. An empty result means that no expired entry is left."""

    def record_hit(self, id: str) -> None:
        """Count a hit in memory until the next `flush`."""

    def flush(self) -> None:
        """Write the counted hits."""

    def list_entries(
        self, where: EntryFilter = EVERYTHING, *, limit: int | None = None, offset: int = 0
    ) -> list[Entry]:
        """Entries, newest first."""

    def eviction_order(self, limit: int, *, offset: int = 0) -> list[EvictionCandidate]:
        """Entries in the order in which a full store removes them."""

    def usage(self, by: UsageKey) -> list[StorageUsage]:
        """Entries, bytes, and hits by tenant, model, endpoint, or tag; most bytes first."""

    def ids(self, where: EntryFilter = EVERYTHING) -> list[str]:
        """Ids of entries."""

    def count(self) -> int:
        """Number of entries, read from one row."""

    def stats(self) -> dict[str, Any]:
        """Entries, namespaces, hits, tokens saved by hits, bytes, and tags."""

    def entries(self) -> Iterator[Entry]:
        """Every entry, oldest first, in pages."""

    def classify(self, answer: ClassifiedAnswer) -> None:
        """Store the class of an entry's answer, unless the entry was removed. Not durable after a power failure."""

    def answer_class(self, namespace: str, text: str) -> str | None:
        """The class of an answer with the same words in a namespace."""

    def answer_vectors(self, ids: Sequence[str], embedder: str) -> dict[str, np.ndarray]:
        """Vectors of entries' answers by one embedder, by id. Missing vectors are omitted."""

    def reset_classes(self, ids: Sequence[str]) -> None:
        """Give each entry a class of its own."""

    def missing_vectors(self, embedder: str, limit: int) -> list[Entry]:
        """Semantic entries without a vector of an embedder."""

    def add_vectors(self, vectors: Iterable[tuple[Entry, np.ndarray]], embedder: str) -> dict[str, int]:
        """Store vectors of entries without a vector, and return the vectors' numbers by id. Not durable after a power failure."""

    def count_by_key_name(self) -> dict[str, int]:
        """Number of entries by the name of their encryption key; the empty name counts unencrypted entries."""

    def reseal(self) -> int:
        """Encrypt all entries with the current key; return the number of entries that changed."""

    def check(self) -> int:
        """Read all data and return the number of responses.

        Raises:
            StoreDamaged: the data is inconsistent.
        """

    def close(self) -> None:
        """Write the counted hits and close the database."""
