"""Writes chunks to all tiers, and loads a chunk from the fastest tier that has it."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any, TypeVar

from kvproxy.doors import CHUNK_STORES
from kvproxy.errors import SettingsError
from kvproxy.privacy.encryption import Cipher, is_encrypted
from kvproxy.settings import TierSettings
from kvproxy.tiers.chunk_store import ChunkData, ChunkStore, TierError, TierStats
from kvproxy.tiers.local_stores import HostStore

_MAX_REDIS_VALUE = 512 << 20
_MIN_PENDING_BYTES = 64 << 20
T = TypeVar("T")
_log = logging.getLogger("kvproxy")


class TierChain:
    """The configured stores, the fastest first. `cipher` encrypts chunks on disk and in Redis."""

    def __init__(
        self, stores: Sequence[ChunkStore], max_pending_bytes: int = 256 << 20, cipher: Cipher | None = None
    ) -> None:
        self.stores = tuple(stores)
        self._cipher = cipher
        self._writer = ThreadPoolExecutor(1, "kvproxy-tiers")
        self._is_closed = False
        self._max_pending_bytes = max_pending_bytes
        self._pending_bytes = 0
        self._counts: dict[str, Any] = {store.name: Counter[str]() for store in self.stores}
        self._write_failures: dict[str, str] = {}
        self._read_failures: dict[str, str] = {}
        self._pending: set[str] = set()
        self._lock = threading.Lock()

    def may_contain(self, key: str) -> bool:
        """Whether a tier may contain a chunk. True for remote stores, which are not called."""
        return any(store.available and (store.remote or store.contains(key)) for store in self.stores)

    def should_save(self, key: str) -> bool:
        return key not in self._pending and any(store.should_put(key) for store in self.stores)

    def find_tier(self, key: str) -> str | None:
        """Return the name of the fastest tier that contains a chunk, or None. Calls remote stores, too."""
        return next((store.name for store in self.stores if self._call(store, lambda s: s.contains(key))), None)

    def load(self, key: str, accept: Callable[[ChunkData], T | None], num_tokens: int = 0) -> T | None:
        """Load a chunk from the fastest tier, and copy it to all faster tiers. `accept` returns None for an invalid chunk.

        `num_tokens` is the number of its tokens that a prompt lacks, for the statistics.
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
            self._increment(store, "tokens_loaded", num_tokens)
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
        """Write a chunk to `stores` (None: all) on the background thread, after `finish`, which completes `data`.

        Return False if too many bytes are pending, or after `close`.
        """

        def task() -> None:
            try:
                finish()
                for store in self.stores if stores is None else stores:
                    if store.should_put(key):
                        self._write(store, key, data)
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

    def clear(self, name: str, timeout: float = 60.0) -> int | None:
        """Delete the chunks of a tier after all pending writes; return their number, or None for an unknown tier."""
        store = next((store for store in self.stores if store.name == name), None)
        if store is None:
            return None
        try:
            return self._writer.submit(store.clear).result(timeout)
        except TimeoutError:
            raise TierError(f"{name} is still busy after {timeout:g} s: try again") from None

    def _write(self, store: ChunkStore, key: str, data: ChunkData) -> None:
        try:
            self._put(store, key, data)
        except TierError as error:
            self._count_error(store, error, self._write_failures)
        else:
            self._write_failures.pop(store.name, None)
            self._read_failures.pop(store.name, None)

    def _call(self, store: ChunkStore, call: Callable[[ChunkStore], T]) -> T | None:
        try:
            value = call(store)
        except TierError as error:
            self._count_error(store, error, self._read_failures)
            return None
        if value:
            self._read_failures.pop(store.name, None)
        return value

    def _count_error(self, store: ChunkStore, error: TierError, failures: dict[str, str]) -> None:
        # Later errors may say only that the store is not used for some seconds.
        failures.setdefault(store.name, str(error))
        errors = self._increment(store, "errors")
        if errors in (1, 10, 100) or errors % 1000 == 0:
            _log.warning("tier %s, error %d: %s", store.name, errors, error)

    def _increment(self, store: ChunkStore, counter: str, amount: int = 1) -> int:
        with self._lock:
            counts: Counter[str] = self._counts[store.name]
            counts[counter] += amount
            return counts[counter]

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all pending chunks are written; return False after a timeout in seconds."""
        return bool(wait([self._writer.submit(int)], timeout).done)

    def stats(self) -> list[TierStats]:
        return [self._stats(store) for store in self.stores]

    def _stats(self, store: ChunkStore) -> TierStats:
        stats, name = store.stats(), store.name
        failure = self._write_failures.get(name) or self._read_failures.get(name)
        return replace(stats, available=stats.available and failure is None, failure=failure, **self._counts[name])

    def close(self) -> None:
        """Write pending chunks for at most 10 seconds, and close the stores."""
        with self._lock:
            self._is_closed = True
        self.flush(10.0)
        self._writer.shutdown(wait=False, cancel_futures=True)
        for store in self.stores:
            self._call(store, lambda s: s.close())


def build_chain(
    settings: TierSettings,
    block_size: int,
    pin_memory: Callable[[ChunkData], ChunkData] | None = None,
    *,
    kv_bytes_per_token: int = 0,
    max_step_tokens: int = 0,
    cipher: Cipher | None = None,
) -> TierChain | None:
    """Create the configured tiers; None if no tier is configured. Raises SettingsError."""
    if not settings.enabled:
        return None
    check_chunk_tokens(settings.chunk_tokens, block_size)
    _check_chunk_fits(settings, settings.chunk_tokens * kv_bytes_per_token)
    names = dict.fromkeys((*CHUNK_STORES.built_in, *settings.stores))
    opened = [CHUNK_STORES.create(name, settings, pin_memory) for name in names]
    stores: list[ChunkStore] = [store for store in opened if store is not None]
    # One step is written while the next is computed. With less, long prompts lose chunks in the middle.
    max_pending_bytes = max(_MIN_PENDING_BYTES, 2 * kv_bytes_per_token * max(max_step_tokens, settings.chunk_tokens))
    return TierChain(stores, max_pending_bytes, cipher)


def check_chunk_tokens(chunk_tokens: int, block_size: int) -> None:
    if chunk_tokens % block_size:
        raise SettingsError(
            f"tiers.chunk_tokens {chunk_tokens} is not a multiple of engine.block_size {block_size}:"
            f" use {max(1, chunk_tokens // block_size) * block_size}",
            param="tiers.chunk_tokens",
        )


def _check_chunk_fits(settings: TierSettings, chunk_bytes: int) -> None:
    limits = [("host", settings.host)]
    limits += [("disk_size", settings.disk_size)] if settings.disk is not None else []
    limits += [("redis", _MAX_REDIS_VALUE)] if settings.redis is not None else []
    for name, size in limits:
        if size is not None and size < chunk_bytes:
            raise SettingsError(
                f"tiers.{name}: a chunk of {settings.chunk_tokens} tokens has {chunk_bytes / 2**20:.1f} MiB, the limit is"
                f" {size / 2**20:.1f} MiB: lower tiers.chunk_tokens{'' if name == 'redis' else ', or raise the limit'}",
                param=f"tiers.{name}",
            )
