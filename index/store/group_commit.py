"""Collects entries while earlier ones are stored, so that a transaction stores many."""

import asyncio
from collections.abc import Callable, Sequence

from kvproxy.index.store.store_types import NewEntry, WriteResult

_BATCH = 256
_Pending = tuple[NewEntry, "asyncio.Future[bool]"]


class WriteBatcher:
    """Group commit: collects entries while `write` stores the previous ones in a transaction. Calls of `write` do not overlap."""

    def __init__(self, write: Callable[[Sequence[NewEntry]], WriteResult]) -> None:
        self._write = write
        self._waiting: list[_Pending] = []
        self._running: asyncio.Task[None] | None = None

    async def put(self, entry: NewEntry) -> bool:
        """Write an entry durably; return False if it exceeds the capacity, or was evicted in the same transaction."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, future))
        if self._running is None:
            self._running = asyncio.create_task(self._drain())
        # A cancelled caller cancels the future only: the entry is still written.
        return await future

    async def _drain(self) -> None:
        batch: list[_Pending] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
                if not await self._write_batch(batch) and len(batch) > 1:
                    # One invalid entry must not fail the other entries.
                    for pending in batch:
                        await self._write_batch([pending])
        finally:
            # At shutdown, no caller may wait forever.
            for _, future in [*batch, *self._waiting]:
                _fail(future, RuntimeError("the write was cancelled"))
            self._waiting, self._running = [], None

    async def _write_batch(self, batch: Sequence[_Pending]) -> bool:
        try:
            result = await asyncio.to_thread(self._write, [entry for entry, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                _fail(batch[0][1], error)
            return False
        refused = {removed.id for removed in result.removed}
        for new, future in batch:
            if not future.done():
                future.set_result(new.entry.id not in refused)
        return True


def _fail(future: "asyncio.Future[bool]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        # asyncio logs exceptions that are never retrieved.
        future.exception()
