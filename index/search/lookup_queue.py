"""A bounded queue of semantic lookups, and the threads that run the embedder and the verifier."""

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")
Value = TypeVar("Value")
_BATCH = 8


def model_threads() -> int:
    """Return the number of threads for models: all cores but one, which the event loop needs."""
    return max(1, (os.cpu_count() or 1) - 1)


class QueueFull(Exception):
    """Too many lookups are waiting."""


class LookupQueue(Generic[Request, Result]):
    """Runs lookups first in, first out, and one background job after each batch of lookups.

    A batch is what has gathered in the meantime, so that the embedder gets several texts at once under load.

    Args:
        prepare: embeds the questions of a batch.
        look_up: computes the result of one prepared request.
        threads: number of threads. All work of the models runs on them, so that the event loop keeps a core.
        size: number of lookups that may wait.
    """

    def __init__(
        self,
        prepare: Callable[[Sequence[Request]], object],
        look_up: Callable[[Request], Result],
        threads: int,
        size: int,
    ) -> None:
        self._prepare = prepare
        self._look_up = look_up
        self._size = size
        self._lookups: deque[tuple[Request, Future[Result]]] = deque()
        self._background: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(threads, "kvproxy-lookup")

    def __len__(self) -> int:
        """Number of waiting lookups."""
        return len(self._lookups)

    async def find(self, request: Request, *, bounded: bool = True) -> Result:
        """Return the result of a lookup. A lookup that is cancelled before it begins never begins.

        Raises:
            QueueFull: too many lookups are waiting, and `bounded` is true.
        """
        future: Future[Result] = Future()
        with self._lock:
            if bounded and len(self._lookups) >= self._size:
                self._lookups = deque(each for each in self._lookups if not each[1].cancelled())
                if len(self._lookups) >= self._size:
                    raise QueueFull
            self._lookups.append((request, future))
        self._threads.submit(self._work)
        return await asyncio.wrap_future(future)

    async def run_in_background(self, job: Callable[[], Value]) -> Value:
        """Run a job after the current batch of lookups."""
        future: Future[Value] = Future()
        with self._lock:
            self._background.append((job, future))
        self._threads.submit(self._work)
        return await asyncio.wrap_future(future)

    def _work(self) -> None:
        with self._lock:
            waiting = [self._lookups.popleft() for _ in range(min(_BATCH, len(self._lookups)))]
            job = self._background.popleft() if self._background else None
        batch = [(request, future) for request, future in waiting if not future.cancelled()]
        if len(batch) > 1:
            # An error of one request must not fail the others. It recurs in the lookup of that request.
            with contextlib.suppress(Exception):
                self._prepare([request for request, _ in batch])
        for request, future in batch:
            _settle(future, partial(self._look_up, request))
        if job is not None:
            _settle(job[1], job[0])

    def close(self) -> None:
        """Cancel waiting work, and wait for running work."""
        self._threads.shutdown(cancel_futures=True)
        waiting: list[Future[Any]] = [*(future for _, future in self._lookups), *(each for _, each in self._background)]
        for future in waiting:
            future.cancel()


def _settle(future: Future[Value], compute: Callable[[], Value]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = compute()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
