"""Maintains a cache of the library in the background."""

import atexit
import contextlib
import logging
import os
import threading
import weakref

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.response_cache import ResponseCache

INTERVAL = 30.0
"""Seconds between two runs."""
_log = logging.getLogger("kvproxy")


class Maintenance:
    """Stores counts of hits, removes expired answers, and embeds new ones every 30 seconds, on a thread, until `stop`.

    It also stores counts at the exit of the process. It does not keep the cache alive, and does nothing in a forked process.
    """

    def __init__(self, cache: ResponseCache) -> None:
        self._cache = weakref.ref(cache)
        self._pid = os.getpid()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvproxy-maintenance", daemon=True)
        atexit.register(self._store_counts)
        weakref.finalize(cache, self._end).atexit = False
        self._thread.start()

    def stop(self) -> None:
        """End, after a run in progress."""
        self._end()
        self._thread.join()

    def _end(self) -> None:
        if os.getpid() == self._pid:
            self._stopped.set()
        atexit.unregister(self._store_counts)

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL):
            self._maintain()

    def _maintain(self) -> None:
        cache = self._cache()
        if cache is None:
            return
        try:
            # A server counts entries slowly.
            cache.maintain(embeds_all=not cache.store.remote)
        except CacheStoreError:
            pass  # The store logs its failure.
        except Exception as error:
            _log.error("housekeeping failed, and is tried again: %s", error)

    def _store_counts(self) -> None:
        cache = self._cache()
        if cache is not None and os.getpid() == self._pid:
            with contextlib.suppress(CacheStoreError):
                cache.store.flush()
