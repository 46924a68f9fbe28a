"""Stores responses, and finds them by exact key."""

import asyncio
import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from kvproxy.index.entry import Entry
from kvproxy.index.entry_redaction import Redactor, redact_entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.pending_writes import PendingWrite, PendingWrites
from kvproxy.index.search.semantic_cache import SemanticCache
from kvproxy.index.store import AnswerComputation, NewEntry, Store
from kvproxy.index.store.group_commit import WriteBatcher

_WRITE_OVERHEAD = 12_288  # Bytes of a pending write without its texts; measured.
_RECENT_SECONDS = 1.0
_RECENT_ENTRIES = 1024
_RECENT_BYTES = 2**16  # Larger entries are always read from the store.


class StoreRead(NamedTuple):
    began: float  # Value of `time.monotonic`.
    num_changes: int  # Calls of `RecentEntries.remove` and `clear` before the read.


class RecentEntries:
    """Entries that were read in the last second, so that frequent exact hits do not query the store. Thread-safe.

    Changes by this process take effect immediately (see `remove`), and changes by another process after a second.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[float, Entry]] = OrderedDict()
        self._changes = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> Entry | None:
        began, entry = self._entries.get(key, (0.0, None))
        return entry if time.monotonic() - began < _RECENT_SECONDS else None

    def begin_read(self) -> StoreRead:
        return StoreRead(time.monotonic(), self._changes)

    def add(self, entry: Entry, read: StoreRead) -> None:
        if len(entry.request) + len(entry.response) > _RECENT_BYTES:
            return
        with self._lock:
            if read.num_changes != self._changes:  # The entry may be older than a change.
                return
            self._entries[entry.key] = read.began, entry
            self._entries.move_to_end(entry.key)
            # The first entry is the oldest. Entries that `get` no longer returns would only occupy memory.
            while (
                len(self._entries) > _RECENT_ENTRIES
                or read.began - next(iter(self._entries.values()))[0] >= _RECENT_SECONDS
            ):
                self._entries.popitem(last=False)

    def remove(self, keys: Iterable[str]) -> None:
        with self._lock:
            self._changes += 1
            for key in keys:
                self._entries.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._changes += 1
            self._entries.clear()


class ResponseCache:
    """Stores responses, and finds them by exact key. Methods may raise a CacheStoreError.

    Args:
        semantic: finds responses to similar questions; None disables semantic search.
        redact: redacts entries before they are stored; None stores them unchanged.
    """

    def __init__(
        self,
        store: Store,
        semantic: SemanticCache | None,
        *,
        clock: Callable[[], float] = time.time,
        redact: Redactor | None = None,
    ) -> None:
        self.store = store
        self.semantic = semantic
        self._clock = clock
        self._redact = redact
        self._recent = RecentEntries()
        store.removal_listeners.append(lambda removed: self._recent.remove(entry.key for entry in removed))
        self._writes = WriteBatcher(store.put_many)
        self.pending_writes = semantic.pending_writes if semantic is not None else PendingWrites()

    async def redact_text(self, text: str) -> str:
        return text if self._redact is None else await asyncio.to_thread(self._redact, text)

    async def is_unchanged_by_redaction(self, question: str) -> bool:
        return self._redact is None or await self.redact_text(question) == question

    async def find(self, key: str, *, latest: bool = False) -> Entry | None:
        """Return the stored or pending entry with a key; None if there is no entry, or if it is `expired` (see `Freshness`).

        `latest` ignores `RecentEntries`, because another process may have changed the entry.
        """
        pending = self.pending_writes.get(key)
        entry = await pending.wait_for_entry() if pending is not None else None
        if pending is not None and await self.is_invalidated(pending.computation):
            entry = None
        if entry is None and not latest:
            entry = self._recent.get(key)
        if entry is not None:
            return entry if entry.freshness(self._clock()) != "expired" else None
        read = self._recent.begin_read()
        entry = await asyncio.to_thread(self.store.find, key) if self.store.remote else self.store.find(key)
        if entry is not None:
            self._recent.add(entry, read)
        return entry

    async def begin_computation(
        self, key: str, namespace: str, tags: tuple[str, ...] | None = None
    ) -> AnswerComputation:
        """Return the beginning computation of an answer, see `AnswerComputation`. Raises no CacheStoreError."""
        read, began = self.store.last_invalidation, 0
        with contextlib.suppress(CacheStoreError):
            began = await asyncio.to_thread(read) if self.store.remote else read()
        return AnswerComputation(key, namespace, began, tags)

    async def is_invalidated(self, computation: AnswerComputation | None) -> bool:
        """Return whether an invalidation is known that covers a computation since it began. Raises no CacheStoreError."""
        check = self.store.is_invalidated
        with contextlib.suppress(CacheStoreError):
            if computation is not None:
                return await asyncio.to_thread(check, computation) if self.store.remote else check(computation)
        return False

    def start_write(
        self, entry: Entry, *, deferred: bool = False, computation: AnswerComputation | None = None
    ) -> PendingWrite:
        """Start to store an entry, which `find` returns from now on. If `deferred`, embed its question after the commit."""
        stored: asyncio.Future[Entry | None]
        if self._redact is None:
            stored = asyncio.get_running_loop().create_future()
            stored.set_result(entry)
        else:
            stored = asyncio.create_task(asyncio.to_thread(redact_entry, entry, self._redact))
        task = asyncio.create_task(self._store(stored, computation, deferred))
        size = _WRITE_OVERHEAD + len(entry.request) + len(entry.response)
        namespace = entry.namespace if entry.semantic and not deferred else None
        pending = PendingWrite(entry.key, namespace, stored, task, size, computation)
        self.pending_writes.add(pending)
        return pending

    async def _store(
        self, redacted: "asyncio.Future[Entry | None]", computation: AnswerComputation | None, deferred: bool
    ) -> bool:
        entry = await redacted
        if entry is None:
            return False
        if self.semantic is None:
            return await self._writes.put(NewEntry(entry, computation=computation))
        return await (self.semantic.insert_deferred if deferred else self.semantic.insert)(entry, computation)

    async def insert(self, entry: Entry, computation: AnswerComputation | None = None) -> bool:
        """Store an entry, and wait for the commit; return False if the capacity, redaction, or an invalidation forbids it."""
        return await asyncio.shield(self.start_write(entry, computation=computation).task)

    async def insert_many(self, entries: Sequence[Entry], *, deferred: bool = False) -> int:
        writes = [self.start_write(entry, deferred=deferred).task for entry in entries]
        return sum(await asyncio.shield(asyncio.gather(*writes)))

    async def remove(self, ids: Sequence[str]) -> int:
        return len(await asyncio.to_thread(self.store.delete, ids))

    async def expire_now(self, ids: Sequence[str]) -> int:
        changed = await asyncio.to_thread(self.store.expire_now, ids)
        self._recent.clear()
        return changed

    def maintain(self, *, embeds_all: bool = False) -> None:
        """Store counts of hits, remove expired entries, and embed entries, see `SemanticCache.maintain`."""
        self.store.flush()
        while self.store.remove_expired():
            pass
        if self.semantic is not None:
            self.semantic.maintain(embeds_all=embeds_all)

    def close(self) -> None:
        if self.semantic is not None:
            self.semantic.close()
        self.store.close()
