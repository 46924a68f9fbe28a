"""The tiers in order of speed: looked up one after the other, written through to all of them.

A chunk is written to every tier when its last token is computed, not when its blocks are evicted: eviction takes single
blocks, the end of a chain first, and overwrites them in the same step, so a chunk would have to be copied in pieces
while a request waits; and a process that is killed would lose everything that was never evicted.
"""

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock
from typing import TypeVar

from kvproxy.tiers.figures import TierFigures
from kvproxy.tiers.store import ChunkStore, Data, StoreStats, TierError

Work = Callable[[], None]


class Writer:
    """Runs pieces of work one after the other, as long as the bytes that wait stay under a limit.

    Args:
        limit: most bytes waiting; work that would exceed it is refused, because the engine must not wait for a disk.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting = 0
        self._changed = threading.Condition()
        self._queue: queue.SimpleQueue[tuple[int, Work] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvproxy-tiers", daemon=True)
        self._thread.start()

    def has_room(self, size: int) -> bool:
        """Whether work that holds `size` bytes would be taken now. A single piece of any size is."""
        return not self._waiting or self._waiting + size <= self._limit

    def offer(self, size: int, work: Work) -> bool:
        """Queue work that holds `size` bytes; False, without doing it, where too much waits already."""
        with self._changed:
            if not self.has_room(size):
                return False
            self._waiting += size
        self._queue.put((size, work))
        return True

    def run(self, work: Work) -> None:
        """Queue work that holds nothing, behind all that waits."""
        self._queue.put((0, work))

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until nothing is waiting; False when the seconds did not suffice."""
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting == 0, timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Finish what waits, within so many seconds."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            size, work = item
            try:
                work()
            except Exception:
                _log.exception("a chunk was not put away")
            finally:
                with self._changed:
                    self._waiting -= size
                    self._changed.notify_all()


T = TypeVar("T")
_log = logging.getLogger("kvproxy")


class TierChain:
    """Stores from the fastest to the slowest.

    Args:
        stores: the tiers.
        pending: most bytes on their way to the stores; chunks beyond are refused, and may be offered again.
    """

    def __init__(self, stores: Sequence[ChunkStore], pending: int = 256 << 20) -> None:
        self.stores = tuple(stores)
        self._writer = Writer(pending)
        self._counts = {store.name: Counter[str]() for store in self.stores}
        self._pending: set[str] = set()
        self._lock = Lock()

    def may_hold(self, key: str) -> bool:
        """Whether a lookup is worth its while; asks no other machine."""
        return any(store.available and (store.remote or store.contains(key)) for store in self.stores)

    def wants(self, key: str) -> bool:
        """Whether some tier lacks a chunk that is not on its way there."""
        return key not in self._pending and any(store.wants(key) for store in self.stores)

    def where(self, key: str) -> str | None:
        """The first tier that holds a chunk. It may ask another machine."""
        return next((store.name for store in self.stores if self._ask(store, lambda s: s.contains(key))), None)

    def load(self, key: str, accept: Callable[[Data], T | None]) -> T | None:
        """What `accept` makes of the first tier's chunk that it takes; faster tiers get a copy.

        A chunk that is not accepted is damaged or foreign: it is deleted, and the next tier is asked.
        """
        for index, store in enumerate(self.stores):
            data = self._ask(store, lambda s: s.get(key))
            if data is None:
                self._count(store, "misses")
                continue
            value = accept(data)
            if value is None:
                self._count(store, "damaged")
                self._ask(store, lambda s: s.delete(key))
                continue
            self._count(store, "hits")
            self._count(store, "bytes_loaded", len(data))
            if index:
                self._offer(key, data, self.stores[:index])
            return value
        return None

    def has_room(self, size: int) -> bool:
        """Whether a chunk of so many bytes would be taken now, unless another thread is faster."""
        return self._writer.has_room(size)

    def save(self, key: str, data: Data, finish: Callable[[], None] = lambda: None) -> bool:
        """Write a chunk through to every tier that lacks it, in the background.

        Args:
            key: its name.
            data: its buffer.
            finish: completes the buffer, on the background thread.

        Returns:
            False where so much is waiting that this chunk is refused.
        """
        return self._offer(key, data, self.stores, finish)

    def _offer(
        self, key: str, data: Data, stores: Sequence[ChunkStore], finish: Callable[[], None] = lambda: None
    ) -> bool:
        def work() -> None:
            try:
                finish()
                for store in stores:
                    if store.wants(key):
                        self._ask(store, lambda s: s.put(key, data))
            finally:
                self._pending.discard(key)

        self._pending.add(key)
        taken = self._writer.offer(len(data), work)
        if not taken:
            self._pending.discard(key)
        return taken

    def drop(self, key: str) -> None:
        """Count a chunk that is given up before it was ever taken."""
        for store in self.stores:
            if store.wants(key):
                self._count(store, "dropped")

    def clear(self, name: str, chosen: Callable[[str], bool], timeout: float = 60.0) -> int | None:
        """Drop the chunks of a tier whose keys are chosen, those that wait to be written included.

        Returns:
            How many; None where there is no such tier.

        Raises:
            TierError: the tier failed, or what waits took longer than `timeout` seconds.
        """
        store = next((store for store in self.stores if store.name == name), None)
        if store is None:
            return None
        done: Future[int] = Future()

        def work() -> None:
            try:
                done.set_result(store.clear(chosen))
            except Exception as error:
                done.set_exception(error)

        self._writer.run(work)
        try:
            return done.result(timeout)
        except TimeoutError:
            raise TierError(f"{name} is still busy after {timeout:g} s") from None

    def _ask(self, store: ChunkStore, call: Callable[[ChunkStore], T]) -> T | None:
        try:
            return call(store)
        except TierError as error:
            errors = self._count(store, "errors")
            if errors in (1, 10, 100) or errors % 1000 == 0:
                _log.warning("tier %s, error %d: %s", store.name, errors, error)
            return None

    def _count(self, store: ChunkStore, what: str, by: int = 1) -> int:
        with self._lock:
            self._counts[store.name][what] += by
            return self._counts[store.name][what]

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything offered is put away; False when the seconds did not suffice."""
        return self._writer.flush(timeout)

    def figures(self) -> list[TierFigures]:
        """Figures of each tier, the fastest first."""
        return [self._figures(store.stats(), self._counts[store.name]) for store in self.stores]

    @staticmethod
    def _figures(now: StoreStats, counts: Counter[str]) -> TierFigures:
        return TierFigures(
            name=now.name,
            chunks=now.chunks,
            bytes=now.bytes,
            limit=now.limit,
            evictions=now.evictions,
            available=now.available,
            hits=counts["hits"],
            misses=counts["misses"],
            damaged=counts["damaged"],
            errors=counts["errors"],
            dropped=counts["dropped"],
            bytes_loaded=counts["bytes_loaded"],
        )

    def close(self) -> None:
        """Put away what waits and release the stores."""
        self._writer.close()
        for store in self.stores:
            self._ask(store, lambda s: s.close())
