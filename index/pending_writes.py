"""Entries that are being stored: equal requests already hit them, and semantic lookups wait for similar ones."""

import asyncio
import contextlib
from dataclasses import dataclass

from kvproxy.index.entry import Entry
from kvproxy.index.store import AnswerComputation

_MAX_BYTES = 32 * 2**20  # Above this size, a new response ends only after `wait_for_space`.


@dataclass(eq=False, slots=True)
class PendingWrite:
    """An entry that is being stored.

    Attributes:
        namespace: None if no semantic lookup waits for the entry, because it will be embedded later or never.
        redacted: the redacted entry; None if redaction forbids storing it.
        size: estimated bytes of memory.
        computation: see `NewEntry`.
    """

    key: str
    namespace: str | None
    redacted: "asyncio.Future[Entry | None]"
    task: "asyncio.Task[bool]"
    size: int = 0
    computation: AnswerComputation | None = None

    @property
    def question(self) -> str | None:
        entry = self._redacted_entry()
        return None if entry is None else entry.prompt

    @property
    def id(self) -> str | None:
        """The entry's id; None until redaction has ended, and if storing failed."""
        entry = self._redacted_entry()
        failed = self.task.done() and not self._was_stored()
        return None if entry is None or failed else entry.id

    async def wait_for_entry(self, seconds: float | None = None) -> Entry | None:
        """Wait for redaction and return the entry; None after a timeout, or if redaction forbids storing it."""
        if not self.redacted.done():
            await asyncio.wait([self.redacted], timeout=seconds)
        return self._redacted_entry()

    def _redacted_entry(self) -> Entry | None:
        is_done = self.redacted.done() and not self.redacted.cancelled()
        return self.redacted.result() if is_done and self.redacted.exception() is None else None

    async def wait_until_stored(self) -> bool:
        if not self.task.done():
            await asyncio.wait([self.task])
        return self._was_stored()

    def _was_stored(self) -> bool:
        return not self.task.cancelled() and self.task.exception() is None and self.task.result()


class PendingWrites:
    """All pending writes. Only code on the event loop may use it."""

    def __init__(self) -> None:
        self.bytes = 0
        self._all: set[PendingWrite] = set()
        self._latest: dict[str, PendingWrite] = {}
        self._has_space = asyncio.Event()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def is_full(self) -> bool:
        return self.bytes >= _MAX_BYTES

    async def wait_for_space(self) -> None:
        while self.is_full:
            self._has_space.clear()
            await self._has_space.wait()

    def add(self, write: PendingWrite) -> None:
        self._all.add(write)
        self.bytes += write.size
        self._latest[write.key] = write
        write.task.add_done_callback(lambda _: self._remove(write))

    def _remove(self, write: PendingWrite) -> None:
        self._all.discard(write)
        self.bytes -= write.size
        if self._latest.get(write.key) is write:
            del self._latest[write.key]
        if not self.is_full:
            self._has_space.set()

    def get(self, key: str) -> PendingWrite | None:
        return self._latest.get(key)

    async def wait_until_stored(self, key: str, seconds: float) -> None:
        """Wait until no entry of the key is being stored, at most for some seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                # A write that has ended is listed until its callbacks run, and waiting for it would not let them run.
                while (write := self.get(key)) is not None and not write.task.done():
                    await write.wait_until_stored()

    def in_namespace(self, namespace: str) -> tuple[PendingWrite, ...]:
        return tuple(write for write in self._all if write.namespace == namespace)

    async def wait_for_all(self, seconds: float | None = None) -> None:
        if self._all:
            await asyncio.wait([write.task for write in self._all], timeout=seconds)
