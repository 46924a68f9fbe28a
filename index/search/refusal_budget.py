import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

MAX_REFUSALS = 32
_REFILL_SECONDS = 3600.0
_MAX_ENTRIES = 20_000


class RefusalBudget:
    """Limits how often a policy may refuse an entry for similar questions, against attackers who search for wrong hits.

    Each entry has a token bucket of 32 refusals, which regains one refusal per hour. The buckets of the 20,000 entries with
    the latest refusals are kept in memory. Thread-safe.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refusals: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def is_spent(self, id: str) -> bool:
        return id in self._refusals and self._recent_refusals(id) > MAX_REFUSALS - 1

    def add(self, ids: Iterable[str]) -> None:
        """Count a question for which the policy refused these entries."""
        with self._lock:
            for id in ids:
                self._refusals[id] = self._recent_refusals(id) + 1, self._clock()
                self._refusals.move_to_end(id)
            while len(self._refusals) > _MAX_ENTRIES:
                self._refusals.popitem(last=False)

    def _recent_refusals(self, id: str) -> float:
        refusals, updated = self._refusals.get(id, (0.0, 0.0))
        return max(0.0, refusals - (self._clock() - updated) / _REFILL_SECONDS)
