"""Hits of entries that are not written yet, so that a hit costs no commit."""

import threading
from collections.abc import Mapping


class HitCounts:
    """Counts hits. Safe to use from several threads."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, float]] = {}
        self._lock = threading.Lock()

    def add(self, id: str, when: float, count: int = 1) -> None:
        """Count hits of an entry, the last one at a time in seconds since the epoch."""
        with self._lock:
            before, last = self._counts.get(id, (0, when))
            self._counts[id] = (before + count, max(last, when))

    def take(self) -> dict[str, tuple[int, float]]:
        """What was counted since the last time: hits and the time of the last one, by id."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts

    def put_back(self, counts: Mapping[str, tuple[int, float]]) -> None:
        """Count hits that could not be written once more, with the next ones."""
        for id, (count, last) in counts.items():
            self.add(id, last, count)
