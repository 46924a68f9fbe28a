"""Embedding of entries that were stored without a vector, in the background."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kvproxy.index.entry import Entry
from kvproxy.index.search.lookup import Lookup

_LIMIT = 64
"""Number of entries in memory. Further ones are read from the store later."""
_BATCH = 4
_log = logging.getLogger("kvproxy")

LookupCallback = Callable[[Lookup], None]


@dataclass(frozen=True, slots=True)
class DeferredEntry:
    """A stored entry without a vector.

    Attributes:
        found: receives what a lookup of the entry's question finds before the entry is searchable.
    """

    entry: Entry
    found: LookupCallback | None = None


class DeferredEmbeddings:
    """A bounded queue of entries that need a vector.

    Args:
        embed: embeds entries and stores their vectors.
        missing: returns entries in the store that have no vector; runs in a thread.
    """

    def __init__(
        self, embed: Callable[[Sequence[DeferredEntry]], Awaitable[None]], missing: Callable[[], Sequence[Entry]]
    ) -> None:
        self._embed = embed
        self._missing = missing
        self._waiting: deque[DeferredEntry] = deque()
        self._more_in_store = False
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.dropped = 0
        """Number of entries whose callback was dropped because the queue was full."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, entry: DeferredEntry) -> None:
        if len(self._waiting) < _LIMIT:
            self._waiting.append(entry)
        else:
            self._more_in_store = True
            self.dropped += entry.found is not None
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._work())

    async def idle(self) -> None:
        """Wait until no entry is deferred."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Stop after the current batch. The next start embeds the remaining entries."""
        self._closed = True
        await self.idle()

    async def _work(self) -> None:
        try:
            while (self._waiting or self._more_in_store) and not self._closed:
                if self._waiting:
                    await self._embed([self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))])
                else:
                    found = await asyncio.to_thread(self._missing)
                    self._more_in_store = len(found) > 0
                    self._waiting.extend(DeferredEntry(entry) for entry in found)
        except Exception:
            # The next deferred entry or the next start tries again.
            self._more_in_store = True
            _log.exception("entries were not embedded, and have exact hits only for now")
        finally:
            self._task = None
