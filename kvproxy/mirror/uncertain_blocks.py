"""Copies of blocks that an engine may have published without storing them.

With `kv_cache_report_mode: full`, vLLM publishes the blocks that a request only reuses as stored again. These events always
start at the first block of a chain, so only an event that starts a chain and ends in a cached block is uncertain. It can also
be a real copy: a request for prompt log-probabilities computes its whole prompt again.

An uncertain copy counts, because most engines never report reuse. When only uncertain copies of a block are left, the engine
must show that the block exists: by removing a copy, or by storing a child. If it does neither while it removes four times as
many blocks as the pool holds, the copies were reports, and later reports do not count.
"""

from kvproxy.mirror.event_decoder import Hash

MAX_TURNOVERS = 4
"""Number of times that the pool's content is removed before an unused uncertain copy counts as a report."""


class UncertainBlocks:
    """Uncertain copies in one pool. `are_reports` is set once the engine is known to report reuse."""

    def __init__(self) -> None:
        self.are_reports = False
        self._copies: dict[Hash, int] = {}
        self._num_copies = 0
        # Blocks with uncertain copies only, with the number of removals at their last use, oldest first.
        self._only_uncertain: dict[Hash, int] = {}
        self._num_removals = 0
        self._max_certain = 0

    def __bool__(self) -> bool:
        return bool(self._only_uncertain)

    def add_uncertain(self, digest: Hash, num_copies: int) -> None:
        """Add an uncertain copy of a block that has `num_copies` now."""
        uncertain = self._copies[digest] = self._copies.get(digest, 0) + 1
        self._num_copies += 1
        if num_copies == uncertain:
            self._only_uncertain.setdefault(digest, self._num_removals)

    def add_certain(self, digest: Hash) -> None:
        """Record that a block got a certain copy."""
        self._only_uncertain.pop(digest, None)

    def mark_used(self, digest: Hash) -> None:
        """Record that a request uses a block."""
        if self._only_uncertain.pop(digest, None) is not None:
            self._only_uncertain[digest] = self._num_removals

    def remove(self, digest: Hash, num_copies: int) -> None:
        """Record that a copy was removed and `num_copies` are left; certain copies are removed first."""
        self._num_removals += 1
        uncertain = self._copies.get(digest, 0)
        if not uncertain or num_copies > uncertain:
            return
        self._only_uncertain.pop(digest, None)
        self._num_copies -= uncertain - num_copies
        if num_copies:
            self._copies[digest] = num_copies
            self._only_uncertain[digest] = self._num_removals
        else:
            del self._copies[digest]

    def update_pool_size(self, num_copies: int) -> None:
        """Record the pool's number of copies, including uncertain ones, to estimate its capacity."""
        self._max_certain = max(self._max_certain, num_copies - self._num_copies)

    def take_reports(self, num_copies: int) -> list[tuple[Hash, int]]:
        """Return the copies that turned out to be reports: hashes with numbers of copies."""
        self.update_pool_size(num_copies)
        oldest = next(iter(self._only_uncertain.values()), self._num_removals)
        if self._num_removals - oldest <= MAX_TURNOVERS * self._max_certain:
            return []
        self.are_reports = True
        reports = list(self._copies.items())
        self.clear()
        return reports

    def clear(self) -> None:
        """Forget all copies after a reset of the cache."""
        self._copies.clear()
        self._only_uncertain.clear()
        self._num_copies = 0
