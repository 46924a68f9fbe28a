"""What waits to be written into the journal, in its order."""

import threading
from collections import deque
from collections.abc import Iterable
from typing import TypeAlias

from kvproxy.journal.draft import Draft
from kvproxy.journal.hits import VALUES, Hit, Hits
from kvproxy.journal.past import Gone, Kept

What: TypeAlias = Draft | Hits | Kept | Gone
_MOST = 20_000
"""Records that may wait."""
_MOST_VALUES = 512 * VALUES
"""Of the hits in one list."""
_MOST_BYTES = 64 * 2**20
"""Bytes of requests that may wait to be written; of what comes then, no regions and no text are kept."""


class Waiting:
    """A queue. Safe to use from several threads."""

    def __init__(self) -> None:
        self._queue: deque[What] = deque()
        self._hits: Hits | None = None  # The last in the queue, while more may be added to it.
        self._records = 0
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def full(self) -> bool:
        """Whether no more records can wait."""
        return self._records >= _MOST

    def add(self, draft: Draft) -> None:
        """Let a request that is over wait."""
        with self._lock:
            if draft.hit is None and draft.request is not None:
                self._bytes += len(draft.request.raw)
                if self._bytes > _MOST_BYTES:
                    draft.parts = None
            self._put(draft)
            self._records += 1

    def add_hit(self, hit: Hit) -> None:
        """Let an exact hit wait."""
        with self._lock:
            hits = self._hits
            if hits is None or len(hits.values) >= _MOST_VALUES:
                hits = Hits()
                self._put(hits)
                self._hits = hits
            hits.values += hit
            self._records += 1

    def add_moved(self, moved: Iterable[Kept | Gone]) -> None:
        """Let entries wait that came or went."""
        with self._lock:
            for each in moved:
                self._put(each)

    def _put(self, what: What) -> None:
        self._queue.append(what)
        self._hits = None

    def __len__(self) -> int:
        return len(self._queue)

    def take(self, most: int) -> list[What]:
        """What has waited longest, as soon as it comes to so many records."""
        taken: list[What] = []
        records = 0
        with self._lock:
            while self._queue and records < most:
                each = self._queue.popleft()
                taken.append(each)
                records += records_of(each)
            if not self._queue:
                self._hits = None
                self._bytes = 0
            self._records -= records
        return taken


def records_of(what: What) -> int:
    """The number of records that will be made of it."""
    if isinstance(what, Hits):
        return len(what)
    return 1 if isinstance(what, Draft) else 0
