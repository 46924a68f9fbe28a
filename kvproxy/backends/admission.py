"""Limits the requests that a backend has in flight and in its queue."""

import asyncio

from kvproxy.backends.overload_log import OverloadLog


class Admission:
    """Limits the numbers of requests in flight and in the queue. A request is queued for at most `timeout` seconds."""

    def __init__(self, limit: int, max_waiting: int, timeout: float) -> None:
        self._semaphore = asyncio.Semaphore(limit)
        self._max_waiting = max_waiting
        self._timeout = timeout
        self._log = OverloadLog()
        self.active = 0
        self.waiting = 0

    async def enter(self) -> None:
        """Wait in FIFO order until the request is admitted. Raises Overloaded."""
        if self._semaphore.locked() and self.waiting >= self._max_waiting:
            raise self._log.refuse("queue_size", f"{self.active} requests are active, and {self.waiting} wait")
        if self._semaphore.locked():
            await self._wait_for_place()
        else:
            await self._semaphore.acquire()
        self.active += 1

    async def _wait_for_place(self) -> None:
        self.waiting += 1
        try:
            async with asyncio.timeout(self._timeout):
                await self._semaphore.acquire()
        except TimeoutError:
            raise self._log.refuse("queue_seconds", f"requests waited for {self._timeout:g} s") from None
        finally:
            self.waiting -= 1

    def leave(self) -> None:
        """End a request, and admit the next one. Call it once after each successful `enter`."""
        self.active -= 1
        self._semaphore.release()
