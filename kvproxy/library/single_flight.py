"""Computes the answer to a question once, although several threads and tasks ask for it at the same time."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextvars import ContextVar

from kvproxy.index.errors import CacheStoreError
from kvproxy.index.response_cache import ResponseCache
from kvproxy.index.store import AnswerComputation

_log = logging.getLogger("kvproxy")


class Abandoned(Exception):
    """The computation was cancelled, so a caller that waits for it computes itself."""


class Flight:
    """An answer that is being computed.

    Attributes:
        computation: None until the lookup that precedes it begins.
    """

    def __init__(self) -> None:
        self.answer = Future[str]()
        self.answer.set_running_or_notify_cancel()  # A waiting task that is cancelled must not cancel it.
        self.computation: AnswerComputation | None = None


# The computations around the current call. Tasks of a computation inherit them.
_computing: ContextVar[frozenset[Flight]] = ContextVar("computing", default=frozenset())


@contextlib.contextmanager
def returning_computed_answer() -> Iterator[None]:
    """Suppress the errors of storing a computed answer, because it is returned in any case."""
    try:
        yield
    except (CacheStoreError, RuntimeError):
        pass  # The store logs its failure, and a cache may be closed during the computation.
    except ValueError as error:
        _log.warning("a computed answer is not stored: %s", error)


class SingleFlight:
    """The answers that are being computed, by key. Thread-safe, but for `is_invalidated`."""

    def __init__(self, cache: ResponseCache) -> None:
        self._cache = cache
        self._flights: dict[str, Flight] = {}
        self._lock = threading.Lock()
        self._num_shared = 0

    @property
    def num_shared(self) -> int:
        """The number of calls that received the answer or the exception of another call's computation."""
        return self._num_shared

    @contextlib.contextmanager
    def share(self) -> Iterator[None]:
        """Count a call that receives the answer or the exception of a computation, and suppress `Abandoned`."""
        try:
            yield
        except Abandoned:
            return
        except Exception:
            self._count_shared()
            raise
        self._count_shared()

    def _count_shared(self) -> None:
        with self._lock:
            self._num_shared += 1

    def join(self, key: str) -> Flight | None:
        """Return a computation that runs; None if the caller must compute the answer, within `lead`.

        Raises RuntimeError if the computation makes this call itself, because it would wait for its own end.
        """
        with self._lock:
            running = self._flights.get(key)
            if running is None:
                self._flights[key] = Flight()
            elif running in _computing.get():
                raise RuntimeError(
                    "compute asks the cache for the question that it computes: give it another namespace"
                )
            return running

    async def is_invalidated(self, flight: Flight) -> bool:
        """Return whether answers that include this one were deleted since its computation began."""
        return await self._cache.is_invalidated(flight.computation)

    @contextlib.contextmanager
    def lead(self, key: str) -> Iterator[Flight]:
        """Yield the computation. All callers that wait for it receive its exception."""
        flight = self._flights[key]
        token = _computing.set(_computing.get() | {flight})
        try:
            yield flight
        except BaseException as error:
            self.detach(key, flight)
            flight.answer.set_exception(error if isinstance(error, Exception) else Abandoned())
            raise
        finally:
            _computing.reset(token)
        self.detach(key, flight)

    def detach(self, key: str, flight: Flight) -> None:
        """Let no further caller join a computation."""
        with self._lock:
            if self._flights.get(key) is flight:
                del self._flights[key]
