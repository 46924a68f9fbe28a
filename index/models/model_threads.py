"""The number and the priority of the threads that run the embedder and the verifier."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

_NICENESS = 4
"""Niceness added to that of the process. On a shared core, a model thread gets 41% of the event loop's time."""
_MAX_NICENESS = 19


def model_threads() -> int:
    return os.cpu_count() or 1


def model_pool(name: str, threads: int | None = None) -> ThreadPoolExecutor:
    """Return a pool, by default with a thread per core, whose threads yield to the event loop."""
    return ThreadPoolExecutor(threads or model_threads(), name, _yield_to_event_loop)


def _yield_to_event_loop() -> None:
    # Only Linux has a priority per thread.
    if sys.platform == "linux":
        niceness = os.getpriority(os.PRIO_PROCESS, os.getpid()) + _NICENESS
        os.setpriority(os.PRIO_PROCESS, 0, min(niceness, _MAX_NICENESS))
