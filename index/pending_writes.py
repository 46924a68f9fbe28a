"""Answers on their way to the store. Equal requests are answered from them, and who reads what is stored can wait for them."""

import asyncio
import concurrent.futures
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvproxy.index.entry import Entry

_FEW = 4
"""With more answers than these on their way, no lookup waits for them: lookups would stand in line behind commits."""
_SHARE = 0.75
"""Of the time that a lookup has, what it may wait for others' writes: then there is time to decide over what is stored."""
_MOST_BYTES = 32 * 2**20
"""Of memory that answers on their way may take before further ones are held back. A disk that takes its time now and then holds
up hundreds of small ones, for which nobody should wait."""
_MOST_SECONDS = 1.0
"""No lookup waits for longer, however much time it has: others wait for its thread, and a store may hang."""


class PendingWrite:
    """An entry on its way to the store.

    Args:
        key: its exact key.
        namespace: where similar questions find it once it is stored; None where they do not.
        entry: what is stored of it, as soon as that is known; None where it must not be stored.
        task: stores it; whether it was kept.
        size: bytes that it takes in memory, about.

    Attributes:
        written: done when the way is over, whatever became of it. Any thread may wait for it.
    """

    def __init__(
        self,
        key: str,
        namespace: str | None,
        entry: "asyncio.Future[Entry | None]",
        task: "asyncio.Task[bool]",
        size: int = 0,
    ) -> None:
        self.size = size
        self.key = key
        self.namespace = namespace
        self.task = task
        self.written: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._entry = entry

    @property
    def question(self) -> str | None:
        """What is stored as its question; None where that is not known yet."""
        entry = self._known()
        return None if entry is None else entry.prompt

    @property
    def id(self) -> str | None:
        """The entry's id while it is on its way, and once it is stored; None where it is not kept, or not known to be."""
        entry = self._known()
        lost = entry is None or (self.task.done() and not self._kept())
        return None if entry is None or lost else entry.id

    async def entry(self, seconds: float | None = None) -> Entry | None:
        """What is stored of it; None where nothing is, or where that is not known in time.

        Args:
            seconds: time for it; None waits until it is known.
        """
        if not self._entry.done():
            await asyncio.wait([self._entry], timeout=seconds)
        return self._known()

    def _known(self) -> Entry | None:
        done = self._entry.done() and not self._entry.cancelled()
        return self._entry.result() if done and self._entry.exception() is None else None

    async def stored(self) -> bool:
        """Wait until the way is over; whether the entry is stored now, durable."""
        if not self.task.done():
            await asyncio.wait([self.task])
        return self._kept()

    def _kept(self) -> bool:
        return not self.task.cancelled() and self.task.exception() is None and self.task.result()


@dataclass(frozen=True, slots=True)
class AwaitedWrites:
    """What is on its way and a reader may want to see, and until when it waits for it, by `time.monotonic`."""

    under_way: tuple[PendingWrite, ...] = ()
    until: float = 0.0


NO_WRITES = AwaitedWrites()


def wait_for(writes: AwaitedWrites, wanted: Callable[[str], bool]) -> None:
    """Wait on the calling thread for what is on its way, as long as there is time.

    Args:
        wanted: whether an entry with a question is worth the wait. One whose question is not known is.
    """
    written = [each.written for each in writes.under_way if each.question is None or wanted(each.question)]
    if written:
        concurrent.futures.wait(written, max(0.0, writes.until - time.monotonic()))


class PendingWrites:
    """The entries that are on their way to the store. To be used on the event loop."""

    def __init__(self) -> None:
        self.bytes = 0
        """That they take in memory, about."""
        self._all: set[PendingWrite] = set()
        self._latest: dict[str, PendingWrite] = {}
        self._room = asyncio.Event()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def full(self) -> bool:
        """Whether further answers should be held back."""
        return self.bytes >= _MOST_BYTES

    async def wait_for_space(self) -> None:
        """Wait until no more answers need be held back: some of those on their way have arrived then, not all."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    def add(self, coming: PendingWrite) -> None:
        """Take note of an entry until its way is over. Of two with the same key the later one counts."""
        self._all.add(coming)
        self.bytes += coming.size
        self._latest[coming.key] = coming
        coming.task.add_done_callback(lambda _: self._arrived(coming))

    def _arrived(self, coming: PendingWrite) -> None:
        self._all.discard(coming)
        self.bytes -= coming.size
        if self._latest.get(coming.key) is coming:
            del self._latest[coming.key]
        coming.written.set_result(None)
        if not self.full:
            self._room.set()

    def get(self, key: str) -> PendingWrite | None:
        """The entry with an exact key."""
        return self._latest.get(key)

    def awaited(self, namespace: str, seconds: float | None) -> AwaitedWrites:
        """What a lookup in a namespace has to wait for, so that it finds what clients were told before it came.

        Args:
            seconds: that the lookup may take; None where it has all the time that it needs.
        """
        if not 0 < len(self._all) <= _FEW:
            return NO_WRITES
        under_way = tuple(coming for coming in self._all if coming.namespace == namespace)
        patience = _MOST_SECONDS if seconds is None else min(_MOST_SECONDS, _SHARE * seconds)
        return AwaitedWrites(under_way, time.monotonic() + patience)

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for what is on its way now; what comes meanwhile is not waited for.

        Args:
            seconds: time for it; None waits as long as it takes.
        """
        if self._all:
            await asyncio.wait([coming.task for coming in self._all], timeout=seconds)
