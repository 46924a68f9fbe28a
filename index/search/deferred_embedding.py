"""What was stored without a vector gets one in the background, while no lookup waits; a little of it even then."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvproxy.index.entry import Entry
from kvproxy.index.search.lookup import Lookup

_MOST = 64  # Entries that are held here, with their answers; what is beyond waits in the store.
_AT_ONCE = 4  # So that no lookup waits long for them.
_LOOK_SECONDS = 0.01
_MOST_SECONDS = 0.5  # After so long some of them are embedded all the same, whoever waits,
_REST = 30.0  # or after so many times as long as the last ones took, so that it takes little of what others need.
_log = logging.getLogger("kvproxy")

LookupCallback = Callable[[Lookup], None]
"""Is told what a lookup of an entry's question would have found before it was there."""


@dataclass(frozen=True, slots=True)
class DeferredEntry:
    """An entry without a vector, and who wants to know what is near it."""

    entry: Entry
    told: LookupCallback | None = None


class DeferredEmbeddings:
    """Entries that wait for their vectors. Their number is bounded: further ones stay in the store until there is time.

    Args:
        give: embeds entries, stores their vectors and makes them findable; on a thread.
        missing: entries in the store that have no vector; on a thread.
        busy: whether lookups wait.
    """

    def __init__(
        self,
        give: Callable[[Sequence[DeferredEntry]], Sequence[Callable[[], None]]],
        missing: Callable[[], Sequence[Entry]],
        busy: Callable[[], bool],
    ) -> None:
        self._give = give
        self._missing = missing
        self._busy = busy
        self._waiting: deque[DeferredEntry] = deque()
        self._left = False
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.dropped = 0
        """Entries that nobody is told of, because too many waited."""

    def __len__(self) -> int:
        """Entries that wait here; those that wait in the store are not counted."""
        return len(self._waiting)

    def add(self, late: DeferredEntry) -> None:
        """Give an entry its vector when there is time."""
        if len(self._waiting) < _MOST:
            self._waiting.append(late)
        else:
            self._left = True
            self.dropped += late.told is not None
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._work())

    async def idle(self) -> None:
        """Wait until nothing waits any more."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Stop, and wait for what is under way; what still waits gets its vector at the next start."""
        self._closed = True
        await self.idle()

    async def _work(self) -> None:
        try:
            due = time.monotonic() + _MOST_SECONDS
            while (self._waiting or self._left) and not self._closed:
                if self._busy() and time.monotonic() < due:
                    await asyncio.sleep(_LOOK_SECONDS)
                    continue
                began = time.monotonic()
                if self._waiting:
                    batch = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
                    for tell in await asyncio.to_thread(self._give, batch):
                        tell()
                else:
                    found = await asyncio.to_thread(self._missing)
                    self._left = len(found) > 0
                    self._waiting.extend(DeferredEntry(entry) for entry in found)
                now = time.monotonic()
                due = now + max(_MOST_SECONDS, _REST * (now - began))
        except Exception:
            # They get their vectors with the next entry that comes here, or at the next start.
            self._left = True
            _log.exception("entries were not embedded, and are served for equal requests only for now")
        finally:
            self._task = None
