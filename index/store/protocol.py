"""What a store of responses does, wherever it keeps them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from kvproxy.index.entry import Entry, Freshness
from kvproxy.index.store.listing import (
    EVERYTHING,
    EntryFilter,
    EvictionCandidate,
    Purge,
    PurgeRequest,
    StorageUsage,
    UsageKey,
)


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry to keep, with the vector of its prompt (`[dim]` float32) and the name of what embedded it."""

    entry: Entry
    vector: np.ndarray | None = None
    embedder: str = ""


@dataclass(frozen=True, slots=True)
class StoredQuestion:
    """What is decided by, of a stored entry, which may be large.

    Attributes:
        freshness: whether it may be served.
        answer: class of its answer: entries of one class were found to say the same.
    """

    id: str
    namespace: str
    prompt: str
    freshness: Freshness
    answer: str = ""


@dataclass(frozen=True, slots=True)
class ClassifiedAnswer:
    """What is kept of an entry's answer, to compare it with others.

    Attributes:
        entry: id of the entry.
        name: the class.
        text: digest of the answer without case and punctuation.
        vector: `[dim]` float32, of the answer.
        embedder: name of what made it.
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
    """An entry that is no longer there.

    Attributes:
        numbers: of its vectors.
        key: its exact key.
        why: what took it away.
    """

    id: str
    namespace: str
    numbers: tuple[int, ...] = ()
    key: str = ""
    why: RemovalReason | None = None


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What a write did.

    Attributes:
        numbers: of the new vectors, in the order of the puts; None where there was no vector. Never reused, and rising.
        gone: entries that were replaced or evicted; a new one is among them if it is larger than the whole store may be,
            or if a later one of the same write took its place.
    """

    numbers: tuple[int | None, ...]
    gone: tuple[RemovedEntry, ...]


@dataclass(frozen=True, slots=True)
class Capacity:
    """How large a store may grow; None is without a limit. Bytes are those of `eviction.entry_bytes`.

    Attributes:
        of_tenant: bytes that the entries of a tenant may take; called in the thread that writes.
    """

    entries: int | None = None
    bytes: int | None = None
    of_tenant: Callable[[str], int | None] | None = None


class Store(Protocol):
    """Responses, the truth of the cache. Safe to use from several threads. Every method may raise a CacheStoreError."""

    name: str
    """Where it is, without secrets."""
    remote: bool
    """Whether calls cross a network, so that none belongs on an event loop."""

    removal_listeners: list[Callable[[Sequence[RemovedEntry]], None]]
    """Called with what went, once that is durable, by whichever thread removed it."""

    def failure(self) -> str | None:
        """Why nothing can be stored or found at the moment; None where it can."""

    def version(self) -> int | None:
        """Another number after each change of what is stored, whoever made it; None where that cannot be told at once."""

    def find(self, key: str) -> Entry | None:
        """The entry with an exact key that is within its time, or within one of its stale times."""

    def get(self, id: str) -> Entry | None:
        """The entry with an id, expired or not."""

    def heads(self, ids: Sequence[str]) -> dict[str, StoredQuestion]:
        """The heads of those entries that are there, by id."""

    def resolve(self, prefix: str) -> list[str]:
        """Ids that begin with a text, ten at most."""

    def has_key(self, key: str) -> bool:
        """Whether an entry with an exact key is there, expired or not."""

    def takes(self, entry: Entry) -> bool:
        """Whether an entry is smaller than what may be stored, in all and of its tenant. Told at once."""

    def put(self, entry: Entry, vector: np.ndarray | None = None, embedder: str = "") -> WriteResult:
        """`put_many` of one."""

    def put_many(self, puts: Sequence[NewEntry]) -> WriteResult:
        """Keep entries in place of any with their keys, in one transaction; durable when this returns.

        Where a limit would be passed, the entries that save the fewest tokens a byte go first, see `eviction`.
        """

    def delete(self, ids: Sequence[str], by: PurgeRequest | None = None) -> list[RemovedEntry]:
        """Remove entries; those that there were.

        Args:
            by: is kept in the list of purges, in the same transaction; None for none.
        """

    def expire_now(self, ids: Sequence[str], by: PurgeRequest | None = None) -> int:
        """Let the time of entries end now, so that they are served as long as their stale times last, and no longer.

        Args:
            by: see `delete`.

        Returns:
            How many were within their time.
        """

    def purges(self, limit: int) -> list[Purge]:
        """Removals by the operator, the last one first; the last thousand are remembered."""

    def pin(self, id: str, *, pinned: bool) -> None:
        """Have an entry make room after all others, while it is within its time; or like others again, as if stored now."""

    def pinned(self) -> list[str]:
        """Ids of the entries that are pinned."""

    def unindex(self, ids: Sequence[str]) -> list[RemovedEntry]:
        """Keep entries for equal requests only: their vectors are deleted."""

    def expire(self) -> list[RemovedEntry]:
        """Remove entries whose time and stale times are over, some thousand at most; none is left when none is returned."""

    def touch(self, id: str) -> None:
        """Count a hit; written with the next `flush`, so that a hit costs no commit."""

    def flush(self) -> None:
        """Write the hits counted since the last call."""

    def ls(self, where: EntryFilter = EVERYTHING, *, limit: int | None = None, offset: int = 0) -> list[Entry]:
        """Entries, newest first; the first `offset` of them are left out."""

    def queue(self, limit: int, *, offset: int = 0) -> list[EvictionCandidate]:
        """The entries that go next if the store is full, the first one first; the first `offset` of them are left out."""

    def usage(self, by: UsageKey) -> list[StorageUsage]:
        """Whose the entries are, those with the most bytes first."""

    def ids(self, where: EntryFilter = EVERYTHING) -> list[str]:
        """Ids of entries."""

    def count(self) -> int:
        """Entries, at the cost of one row."""

    def stats(self) -> dict[str, Any]:
        """Figures of the store: entries, namespaces, hits, tokens saved by hits, bytes, tags."""

    def entries(self) -> Iterator[Entry]:
        """Every entry, oldest first, a page at a time."""

    def classify(self, answer: ClassifiedAnswer) -> None:
        """Keep what an entry says, and its class, in place of what was kept before; nothing where the entry has gone.

        It survives a killed process; of the last seconds before a power cut an entry may keep a class of its own.
        """

    def answer_class(self, namespace: str, text: str) -> str | None:
        """The class of an answer with the same words in a namespace."""

    def answer_vectors(self, ids: Sequence[str], embedder: str) -> dict[str, np.ndarray]:
        """Vectors of the answers of those entries that have one of an embedder."""

    def reset_classes(self, ids: Sequence[str]) -> None:
        """Give entries a class of their own."""

    def missing_vectors(self, embedder: str, limit: int) -> list[Entry]:
        """Semantic entries without a vector of an embedder."""

    def add_vectors(self, vectors: Iterable[tuple[Entry, np.ndarray]], embedder: str) -> dict[str, int]:
        """Keep vectors of entries that have none; their numbers by the ids of the entries.

        They come back after a power cut only if they were on the disk by then: they can be made again.
        """

    def sealed_with(self) -> dict[str, int]:
        """How many entries were encrypted with which key, by its name; those in clear by the empty name."""

    def reseal(self) -> int:
        """Encrypt entries that are in clear, or under another key, with the key that encrypts now; how many there were."""

    def check(self) -> int:
        """Have everything read; how many responses there are.

        Raises:
            StoreDamaged: something is wrong.
        """

    def close(self) -> None:
        """Write what is pending and let go."""
