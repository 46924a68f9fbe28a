"""Writes that come together share a transaction: one commit to disk acknowledges them all."""

import asyncio
from collections.abc import Callable, Sequence

from kvproxy.index.store import Put, Written

MOST = 256


class WriteBatcher:
    """Puts of many callers. What arrives while a transaction is written becomes the next one.

    Args:
        write: writes puts, durable when it returns; called on one thread at a time, in order.
    """

    def __init__(self, write: Callable[[Sequence[Put]], Written]) -> None:
        self._write = write
        self._waiting: list[tuple[Put, asyncio.Future[bool]]] = []
        self._running: asyncio.Task[None] | None = None

    async def put(self, put: Put) -> bool:
        """Whether an entry was kept, durable when this returns; False where it is larger than the store may be.

        Raises:
            CacheStoreError: it was not written.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((put, future))
        if self._running is None:
            self._running = asyncio.create_task(self._drain())
        return await asyncio.shield(future)

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            if not await self._together(batch) and len(batch) > 1:
                # One that cannot be written must not cost the others their place.
                for each in batch:
                    await self._together([each])
        self._running = None

    async def _together(self, batch: list[tuple[Put, asyncio.Future[bool]]]) -> bool:
        """Write a batch and tell its callers; False where a batch of several failed, with nobody told."""
        try:
            written = await asyncio.to_thread(self._write, [put for put, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                _tell(batch[0][1], error)
            return False
        refused = {gone.id for gone in written.gone}
        for put, future in batch:
            _tell(future, put.entry.id not in refused)
        return True


def _tell(future: asyncio.Future[bool], result: bool | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
        # A caller that has gone must not leave an exception that nobody reads.
        future.exception()
    else:
        future.set_result(result)
