import asyncio
import logging
from collections.abc import Awaitable, Callable

_log = logging.getLogger("kvproxy")


class DeferredEmbeddings:
    def __init__(self, embed_next: Callable[[], Awaitable[bool]]) -> None:
        self._embed_next = embed_next
        self._is_requested = False
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        self._is_requested = True
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._work())

    async def wait_until_idle(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        self._closed = True
        await self.wait_until_idle()

    async def _work(self) -> None:
        try:
            while self._is_requested and not self._closed:
                self._is_requested = False
                # An augmented assignment would read the flag before the await, and lose a `start` during it.
                found_some = await self._embed_next()
                self._is_requested = self._is_requested or found_some
        except Exception:
            _log.exception("entries were not embedded, and have exact hits only for now")
        finally:
            self._task = None
