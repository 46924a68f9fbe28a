"""Copies of blocks that an engine may have published without making them.

With `kv_cache_report_mode: full` in a request, vLLM publishes the blocks that the request only reuses as stored once more, and
nothing in the event tells them from new ones. It always publishes them from the first block on, so only a run that begins a
chain and ends in a block that is held is doubtful. Such runs are real copies too: a request for log-probabilities of its
prompt computes all of it anew, and so does one on a hybrid model when another group has lost its blocks.

A doubtful copy is counted, since almost all engines never report. When only doubtful copies of a block are left, the engine
must show that it has them: by giving one up, or by going on after the block. When it does neither while it gives up four times
as many blocks as the pool holds (an idle block goes long before, but a long request holds its own), the copies were reports.
From then on no doubtful run is counted: a block that is there may be missing from the view, but none is shown that is gone.
"""

from kvproxy.mirror.wire import Hash

TURNS = 4
"""Times that the pool's content must be given up before a copy without a sign of life is taken for a report."""


class Doubts:
    """Doubtful copies of one pool.

    Attributes:
        are_reports: whether the engine is known to publish reuse.
    """

    def __init__(self) -> None:
        self.are_reports = False
        self._copies: dict[Hash, int] = {}
        self._num_copies = 0
        # Blocks of which only doubtful copies are left, with the count of removals at their last sign of life, oldest first.
        self._alone: dict[Hash, int] = {}
        self._removals = 0
        self._most = 0

    def __bool__(self) -> bool:
        return bool(self._alone)

    def add(self, digest: Hash, copies: int) -> None:
        """A block got a doubtful copy, and has `copies` now."""
        doubtful = self._copies[digest] = self._copies.get(digest, 0) + 1
        self._num_copies += 1
        if copies == doubtful:
            self._alone.setdefault(digest, self._removals)

    def certain(self, digest: Hash) -> None:
        """A block got a copy that is no report."""
        self._alone.pop(digest, None)

    def alive(self, digest: Hash) -> None:
        """A request holds a block."""
        if self._alone.pop(digest, None) is not None:
            self._alone[digest] = self._removals

    def removed(self, digest: Hash, copies: int) -> None:
        """A copy of a block was given up, and `copies` are left; those that are certain go first."""
        self._removals += 1
        doubtful = self._copies.get(digest, 0)
        if not doubtful or copies > doubtful:
            return
        self._alone.pop(digest, None)
        self._num_copies -= doubtful - copies
        if copies:
            self._copies[digest] = copies
            self._alone[digest] = self._removals
        else:
            del self._copies[digest]

    def grown(self, num_copies: int) -> None:
        """The pool holds so many copies now, doubtful ones included: the most that are certain tell how much it can hold."""
        self._most = max(self._most, num_copies - self._num_copies)

    def settle(self, num_copies: int) -> list[tuple[Hash, int]]:
        """The copies that were reports, once that is certain: names, and how many of each.

        Args:
            num_copies: how many copies the pool holds, these included.
        """
        self.grown(num_copies)
        oldest = next(iter(self._alone.values()), self._removals)
        if self._removals - oldest <= TURNS * self._most:
            return []
        self.are_reports = True
        reports = list(self._copies.items())
        self.clear()
        return reports

    def clear(self) -> None:
        """The cache was reset; what is known of the engine stays."""
        self._copies.clear()
        self._alone.clear()
        self._num_copies = 0
