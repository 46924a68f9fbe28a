"""What waits to be written into the journal, in its order."""

import threading
from collections import ChainMap, deque
from collections.abc import Iterable
from typing import TypeAlias

from kvproxy.journal.draft import Draft
from kvproxy.journal.hits import ID_BYTES, PACKED, Equal, Hit, Hits, Kind
from kvproxy.journal.past import Gone, Kept

What: TypeAlias = Draft | Hits | Kept | Gone
MOST = 20_000
"""Records that may wait."""
_MOST_BYTES = 64 * 2**20
"""Bytes of requests that may wait to be written; of what comes then, no regions and no text are kept."""
_MOST_KINDS = 4_096
"""Kinds of hits after which they are numbered anew."""


class Waiting:
    """A queue. Safe to use from several threads.

    Attributes:
        hits: those that came after all else, as `PACKED` has them. One may be put there without a lock: a bytearray takes it in
            one step.
        room: the most bytes of them.
        oldest: the least number of a kind of which hits are expected.
    """

    def __init__(self) -> None:
        self.hits = bytearray()
        self.room = MOST * PACKED.size
        self.oldest = 1
        self._queue: deque[bytes | Draft | Kept | Gone] = deque()
        self._queued = 0
        self._next = 1
        self._kinds: dict[int, Kind] = {}
        self._earlier: dict[int, Kind] = {}
        self._equals: dict[Equal, Kind] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def full(self) -> bool:
        """Whether no more records can wait."""
        return len(self.hits) >= self.room

    def add(self, draft: Draft) -> None:
        """Let a request that is over wait."""
        with self._lock:
            if draft.hit is None and draft.request is not None:
                self._bytes += len(draft.request.raw)
                if self._bytes > _MOST_BYTES:
                    draft.parts = None
            self._append(draft)

    def add_hit(self, hit: Hit) -> None:
        """Let an exact hit wait."""
        equal, time, request_id, found, answered = hit
        packed = request_id.encode("latin-1", "ignore")
        with self._lock:
            if len(packed) < ID_BYTES and len(packed) == len(request_id):
                kind = self._equals.get(equal)
                if kind is None:
                    kind = self._equals[equal] = self._numbered(Kind(equal))
            else:
                kind, packed = self._numbered(Kind(equal, request_id=request_id)), b""
            self.hits += PACKED.pack(time, found, answered, kind.number, packed)

    def _numbered(self, kind: Kind) -> Kind:
        kind.number = self._next
        self._kinds[kind.number] = kind
        self._next += 1
        return kind

    def add_moved(self, moved: Iterable[Kept | Gone]) -> None:
        """Let entries wait that came or went."""
        with self._lock:
            for each in moved:
                self._append(each)

    def _append(self, what: Draft | Kept | Gone) -> None:
        """Let something wait behind the hits that came before it."""
        self._queue_hits()
        self._queue.append(what)
        self._queued += 1
        self.room -= records_of(what) * PACKED.size

    def _queue_hits(self) -> None:
        if self.hits:
            packed = bytes(self.hits)
            # One that has come since stays there.
            del self.hits[: len(packed)]
            self._queue.append(packed)
            self._queued += len(packed) // PACKED.size
            self.room -= len(packed)

    def __len__(self) -> int:
        return self._queued + len(self.hits) // PACKED.size

    def take(self, most: int) -> list[What]:
        """So many of those that have waited longest, or all."""
        with self._lock:
            self._queue_hits()
            kinds = ChainMap(self._kinds, self._earlier)
            if len(self._kinds) >= _MOST_KINDS:
                # What waits still, and a hit that is about to be put there, are of these.
                self._earlier, self._kinds, self._equals = self._kinds, {}, {}
                self.oldest = self._next
            what: list[What] = []
            left = min(most, self._queued)
            self._queued -= left
            while left > 0:
                each = self._queue.popleft()
                if isinstance(each, bytes):
                    some = each[: left * PACKED.size]
                    if len(some) < len(each):
                        self._queue.appendleft(each[len(some) :])
                    what.append(Hits(some, kinds))
                    left -= len(some) // PACKED.size
                else:
                    what.append(each)
                    left -= 1
            self.room += sum(map(records_of, what)) * PACKED.size
            if not self._queue:
                self._bytes = 0
        return what


def records_of(what: What) -> int:
    """The number of records that will be made of it."""
    if isinstance(what, Hits):
        return len(what)
    return 1 if isinstance(what, Draft) else 0
