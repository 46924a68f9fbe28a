"""A bounded queue of semantic lookups, and the threads that run the embedder and the verifier."""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from kvproxy.index.models.model_threads import model_pool
from kvproxy.index.pending_writes import PendingWrite
from kvproxy.index.search.lookup_result import Lookup, LookupRequest

Value = TypeVar("Value")
LookupResult = Lookup | list[PendingWrite]
"""A result; or pending writes of similar questions: repeat the lookup when they have ended."""
_MIN_QUEUED_SHARE = 0.5
"""Share of the timeout in which a lookup may start, however long lookups take. Otherwise, slow ones could end all lookups."""
_DURATION_MARGIN = 2.0
_DURATION_WEIGHT = 0.1
_BACKGROUND_SECONDS = 1.0


class QueueFull(Exception): ...


@dataclass(frozen=True, slots=True)
class _WaitingLookup:
    """A lookup that should end by `due` (`time.monotonic`), `seconds` after its arrival."""

    request: LookupRequest
    due: float
    seconds: float
    future: "Future[LookupResult]" = field(default_factory=Future)

    def may_begin(self, duration: float) -> bool:
        """Return whether the lookup may begin; if it would be late by the usual duration of lookups, it fails."""
        reserved = min(_DURATION_MARGIN * duration, (1 - _MIN_QUEUED_SHARE) * self.seconds)
        is_late = not math.isinf(self.due) and time.monotonic() > self.due - reserved
        if is_late and self.future.set_running_or_notify_cancel():
            self.future.set_exception(TimeoutError())
        return not self.future.done()


class _Job(NamedTuple):
    compute: Callable[[], Any]
    future: "Future[Any]"
    due: float  # Time (`time.monotonic`) after which the job runs even if lookups wait.


class LookupQueue:
    """Runs lookups in order of arrival, and background jobs while no lookup waits."""

    def __init__(self, look_up: Callable[[LookupRequest], LookupResult], threads: int, size: int) -> None:
        self._look_up = look_up
        self._size = size
        self._lookups: deque[_WaitingLookup] = deque()
        self._background: deque[_Job] = deque()
        self._unfinished: set[Future[LookupResult]] = set()
        self._lock = threading.Lock()
        self._duration = math.inf
        self._threads = model_pool("kvproxy-lookup", threads)

    def __len__(self) -> int:
        return len(self._lookups)

    @property
    def is_idle(self) -> bool:
        return not self._unfinished

    async def find(self, request: LookupRequest, seconds: float | None = None) -> LookupResult:
        """Return the result of a lookup; raises QueueFull, or a TimeoutError.

        `seconds` is the timeout; None waits without a limit, and enters the queue even if it is full.
        """
        timeout = math.inf if seconds is None else seconds
        waiting = _WaitingLookup(request, time.monotonic() + timeout, timeout)
        with self._lock:
            if seconds is not None and len(self._lookups) >= self._size:
                self._lookups = deque(lookup for lookup in self._lookups if not lookup.future.cancelled())
                if len(self._lookups) >= self._size:
                    raise QueueFull
            self._lookups.append(waiting)
        self._unfinished.add(waiting.future)
        waiting.future.add_done_callback(self._unfinished.discard)
        self._threads.submit(self._work)
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(waiting.future)

    async def run_in_background(self, job: Callable[[], Value]) -> Value:
        """Run a job on a lookup thread when no lookup waits, or after one second, and return its result."""
        future: Future[Value] = Future()
        with self._lock:
            self._background.append(_Job(job, future, time.monotonic() + _BACKGROUND_SECONDS))
        self._threads.submit(self._work)
        return await asyncio.wrap_future(future)

    def _work(self) -> None:
        with self._lock:
            lookup = self._next_lookup()
            is_due = self._background and (lookup is None or time.monotonic() > self._background[0].due)
            job = self._background.popleft() if is_due else None
        if lookup is not None:
            began = time.monotonic()
            _set_future_result(lookup.future, partial(self._look_up, lookup.request))
            self._add_duration(time.monotonic() - began)
        if job is not None:
            _set_future_result(job.future, job.compute)

    def _add_duration(self, seconds: float) -> None:
        """Update the mean duration of recent lookups. Threads may lose an update, which does not matter."""
        is_first = math.isinf(self._duration)
        self._duration = seconds if is_first else self._duration + _DURATION_WEIGHT * (seconds - self._duration)

    def _next_lookup(self) -> _WaitingLookup | None:
        while self._lookups:
            lookup = self._lookups.popleft()
            if lookup.may_begin(self._duration):
                return lookup
        return None

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        waiting: list[Future[Any]] = [
            *(lookup.future for lookup in self._lookups),
            *(job.future for job in self._background),
        ]
        for future in waiting:
            # A cancelled future would cancel the task that waits for it.
            if future.set_running_or_notify_cancel():
                future.set_exception(RuntimeError("the cache was closed before the lookup began"))


def _set_future_result(future: Future[Value], compute: Callable[[], Value]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = compute()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
