"""What waits to be written into the journal, in its order."""

import threading
from collections import ChainMap, deque
from collections.abc import Iterable
from itertools import groupby
from typing import TypeAlias, cast

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
        queue: a hit is here as `PACKED` has it, and may be put here without a lock: a deque takes it in one step.
        oldest: the least number of a kind of which hits are expected.
        moved: how many of those that wait become no records.
    """

    def __init__(self) -> None:
        self.queue: deque[bytes | Draft | Kept | Gone] = deque()
        self.oldest = 1
        self.moved = 0
        self._next = 1
        self._kinds: dict[int, Kind] = {}
        self._earlier: dict[int, Kind] = {}
        self._equals: dict[Equal, Kind] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def full(self) -> bool:
        """Whether no more records can wait."""
        return len(self.queue) - self.moved >= MOST

    def add(self, draft: Draft) -> None:
        """Let a request that is over wait."""
        with self._lock:
            if draft.hit is None and draft.request is not None:
                self._bytes += len(draft.request.raw)
                if self._bytes > _MOST_BYTES:
                    draft.parts = None
            self.queue.append(draft)

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
            self.queue.append(PACKED.pack(time, found, answered, kind.number, packed))

    def expect(self, kind: Kind) -> None:
        """Be ready for hits of a kind, which need its number only."""
        with self._lock:
            if kind.number < self.oldest:
                self._numbered(kind)

    def forget(self) -> None:
        """Expect no hits any more."""
        with self._lock:
            self.oldest = self._next

    def _numbered(self, kind: Kind) -> Kind:
        kind.number = self._next
        self._kinds[kind.number] = kind
        self._next += 1
        return kind

    def add_moved(self, moved: Iterable[Kept | Gone]) -> None:
        """Let entries wait that came or went."""
        with self._lock:
            for each in moved:
                self.queue.append(each)
                self.moved += 1

    def __len__(self) -> int:
        return len(self.queue)

    def take(self, most: int) -> list[What]:
        """So many of those that have waited longest, or all."""
        with self._lock:
            next_ = self.queue.popleft
            taken = [next_() for _ in range(min(most, len(self.queue)))]
            kinds = ChainMap(self._kinds, self._earlier)
            if len(self._kinds) >= _MOST_KINDS:
                # What waits still, and a hit that is about to be put there, are of these.
                self._earlier, self._kinds, self._equals = self._kinds, {}, {}
                self.oldest = self._next
            what: list[What] = []
            for type_, some in groupby(taken, type):
                if type_ is bytes:
                    what.append(Hits(b"".join(cast("Iterable[bytes]", some)), kinds))
                else:
                    what += cast("Iterable[Draft | Kept | Gone]", some)
            self.moved -= sum([isinstance(each, Kept | Gone) for each in what])
            if not self.queue:
                self._bytes = 0
        return what


def records_of(what: What) -> int:
    """The number of records that will be made of it."""
    if isinstance(what, Hits):
        return len(what)
    return 1 if isinstance(what, Draft) else 0
