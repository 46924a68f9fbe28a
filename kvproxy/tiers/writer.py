"""A thread that puts chunks away while the engine goes on."""

import logging
import queue
import threading
from collections.abc import Callable

Work = Callable[[], None]
_log = logging.getLogger("kvproxy")


class Writer:
    """Runs pieces of work one after the other, as long as the bytes that wait stay under a limit.

    Args:
        limit: most bytes waiting; work that would exceed it is refused, because the engine must not wait for a disk.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting = 0
        self._changed = threading.Condition()
        self._queue: queue.SimpleQueue[tuple[int, Work] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kvproxy-tiers", daemon=True)
        self._thread.start()

    def has_room(self, size: int) -> bool:
        """Whether work that holds `size` bytes would be taken now. A single piece of any size is."""
        return not self._waiting or self._waiting + size <= self._limit

    def offer(self, size: int, work: Work) -> bool:
        """Queue work that holds `size` bytes; False, without doing it, where too much waits already."""
        with self._changed:
            if not self.has_room(size):
                return False
            self._waiting += size
        self._queue.put((size, work))
        return True

    def run(self, work: Work) -> None:
        """Queue work that holds nothing, behind all that waits."""
        self._queue.put((0, work))

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until nothing is waiting; False when the seconds did not suffice."""
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting == 0, timeout)

    def close(self, timeout: float = 10.0) -> None:
        """Finish what waits, within so many seconds."""
        self._queue.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            size, work = item
            try:
                work()
            except Exception:
                _log.exception("a chunk was not put away")
            finally:
                with self._changed:
                    self._waiting -= size
                    self._changed.notify_all()
