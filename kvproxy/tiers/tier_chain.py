"""Writes chunks to all tiers, and loads a chunk from the fastest tier that has it.

A chunk is written when its last token was computed. On eviction it would be too late: the step that evicts a block
overwrites it.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict
from typing import TypeVar

from kvproxy.encryption import Cipher, is_encrypted
from kvproxy.tiers.chunk_store import ChunkData, ChunkStore, TierError, TierStats
from kvproxy.tiers.host_memory import HostStore

T = TypeVar("T")
_log = logging.getLogger("kvproxy")


class TierChain:
    """The configured stores, the fastest first.

    Args:
        max_pending_bytes: maximum size of all pending writes; further chunks are dropped.
        cipher: encrypts chunks on disk and in Redis. Machines that share a Redis need the same encryption keys.
    """

    def __init__(
        self, stores: Sequence[ChunkStore], max_pending_bytes: int = 256 << 20, cipher: Cipher | None = None
    ) -> None:
        self.stores = tuple(stores)
        self._cipher = cipher
        self._writer = ThreadPoolExecutor(1, "kvproxy-tiers")
        self._is_closed = False
        self._max_pending_bytes = max_pending_bytes
        self._pending_bytes = 0
        self._counts = {store.name: Counter[str]() for store in self.stores}
        self._pending: set[str] = set()
        self._lock = threading.Lock()

    def may_contain(self, key: str) -> bool:
        """Whether a tier may contain a chunk. Remote stores are not called, and count as containing it."""
        return any(store.available and (store.remote or store.contains(key)) for store in self.stores)

    def should_save(self, key: str) -> bool:
        return key not in self._pending and any(store.should_put(key) for store in self.stores)

    def find_tier(self, key: str) -> str | None:
        """Return the name of the fastest tier that contains a chunk, or None. Calls remote stores, too."""
        return next((store.name for store in self.stores if self._call(store, lambda s: s.contains(key))), None)

    def load(self, key: str, accept: Callable[[ChunkData], T | None]) -> T | None:
        """Load a chunk from the fastest tier that has a valid one, and copy it to all faster tiers.

        `accept` converts the chunk to the result. If it returns None, the chunk is invalid and is deleted.
        """
        for index, store in enumerate(self.stores):
            data = self._call(store, lambda s: s.get(key))
            if data is None:
                self._increment(store, "misses")
                continue
            data = self._decrypt(key, data)
            value = accept(data)
            if value is None:
                self._increment(store, "damaged")
                self._call(store, lambda s: s.delete(key))
                continue
            self._increment(store, "hits")
            self._increment(store, "bytes_loaded", len(data))
            if index:
                self.save(key, data, stores=self.stores[:index])
            return value
        return None

    def _decrypt(self, key: str, data: ChunkData) -> ChunkData:
        try:
            return bytearray(self._cipher.decrypt(data, key.encode())) if self._cipher and is_encrypted(data) else data
        except ValueError:
            return data

    def _put(self, store: ChunkStore, key: str, data: ChunkData) -> None:
        if self._cipher is not None and not isinstance(store, HostStore):
            data = self._cipher.encrypt(data, key.encode())
        store.put(key, data)

    def has_room(self, size: int) -> bool:
        """Whether `save` would accept a chunk of `size` bytes now. The check reserves no space."""
        return not self._pending_bytes or self._pending_bytes + size <= self._max_pending_bytes

    def save(
        self,
        key: str,
        data: ChunkData,
        finish: Callable[[], None] = lambda: None,
        stores: Sequence[ChunkStore] | None = None,
    ) -> bool:
        """Write a chunk on the background thread. Return False if too many bytes are pending, or after `close`.

        Args:
            finish: called on the background thread before the write, to complete `data`.
            stores: the stores to write to; None for all stores.
        """

        def task() -> None:
            try:
                finish()
                for store in self.stores if stores is None else stores:
                    if store.should_put(key):
                        self._call(store, lambda s: self._put(s, key, data))
            except Exception:
                _log.exception("cannot store a chunk")
            finally:
                self._pending.discard(key)
                with self._lock:
                    self._pending_bytes -= len(data)

        with self._lock:
            if self._is_closed or not self.has_room(len(data)):
                return False
            self._pending_bytes += len(data)
            self._pending.add(key)
            self._writer.submit(task)
        return True

    def count_dropped(self, key: str) -> None:
        for store in self.stores:
            if store.should_put(key):
                self._increment(store, "dropped")

    def clear(self, name: str, matches: Callable[[str], bool], timeout: float = 60.0) -> int | None:
        """Delete the chunks of a tier whose keys match, after all pending writes.

        Returns the number of deleted chunks, or None for an unknown tier. Raises TierError after `timeout` seconds.
        """
        store = next((store for store in self.stores if store.name == name), None)
        if store is None:
            return None
        try:
            return self._writer.submit(store.clear, matches).result(timeout)
        except TimeoutError:
            raise TierError(f"{name} is still busy after {timeout:g} s: try again") from None

    def _call(self, store: ChunkStore, call: Callable[[ChunkStore], T]) -> T | None:
        try:
            return call(store)
        except TierError as error:
            errors = self._increment(store, "errors")
            if errors in (1, 10, 100) or errors % 1000 == 0:
                _log.warning("tier %s, error %d: %s", store.name, errors, error)
            return None

    def _increment(self, store: ChunkStore, counter: str, amount: int = 1) -> int:
        with self._lock:
            self._counts[store.name][counter] += amount
            return self._counts[store.name][counter]

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all pending chunks are written; return False after a timeout in seconds."""
        return bool(wait([self._writer.submit(int)], timeout).done)

    def stats(self) -> list[TierStats]:
        return [TierStats(**(asdict(store.stats()) | self._counts[store.name])) for store in self.stores]

    def close(self) -> None:
        """Write pending chunks for at most 10 seconds, and close the stores."""
        with self._lock:
            self._is_closed = True
        self.flush(10.0)
        self._writer.shutdown(wait=False, cancel_futures=True)
        for store in self.stores:
            self._call(store, lambda s: s.close())
