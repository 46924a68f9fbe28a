"""Answers on their way to the store. Equal requests are answered from them, and who reads what is stored can wait for them."""

import asyncio

from kvproxy.index.entry import Entry

_MOST_BYTES = 32 * 2**20
"""Of memory that answers on their way may take before further ones are held back. A disk that takes its time now and then holds
up hundreds of small ones, for which nobody should wait."""


class PendingWrite:
    """An entry on its way to the store.

    Args:
        key: its exact key.
        namespace: where similar questions find it once it is stored; None where they do not.
        entry: what is stored of it, as soon as that is known; None where it must not be stored.
        task: stores it; whether it was kept.
        size: bytes that it takes in memory, about.
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
        if not self.full:
            self._room.set()

    def get(self, key: str) -> PendingWrite | None:
        """The entry with an exact key."""
        return self._latest.get(key)

    def in_namespace(self, namespace: str) -> tuple[PendingWrite, ...]:
        """Return the pending writes that a lookup in a namespace may have to wait for."""
        return tuple(write for write in self._all if write.namespace == namespace)

    async def wait(self, seconds: float | None = None) -> None:
        """Wait for what is on its way now; what comes meanwhile is not waited for.

        Args:
            seconds: time for it; None waits as long as it takes.
        """
        if self._all:
            await asyncio.wait([coming.task for coming in self._all], timeout=seconds)
