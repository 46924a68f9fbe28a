"""Deadlines of requests, and their end when the proxy stops."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from kvproxy.apis.request_directives import TIMEOUT
from kvproxy.errors import DeadlineExceeded, KvproxyError

_OWN = "raise the setting limits.request_seconds"
_ASKED = f"the header {TIMEOUT} asks for no more: give it a longer time, or leave it out"


class Lifetimes:
    """The deadlines of all requests in flight.

    Args:
        seconds: default time limit of a request.
        limited: called with the name of the limit that ended a request.
    """

    def __init__(self, seconds: float, limited: Callable[[str], None]) -> None:
        self._seconds = seconds
        self._limited = limited
        self._open: set[asyncio.Future[KvproxyError]] = set()
        self._stopped: KvproxyError | None = None
        self.stopping = False
        """Endless streams, such as the live log, end now."""

    def begin(self) -> "Lifetime":
        return Lifetime(self, self._seconds)

    def end_all(self, error: KvproxyError) -> None:
        """End all present and future requests."""
        self._stopped = error
        for end in self._open:
            self.end(end, error, "drain_seconds")

    @contextmanager
    def open(self, deadline: float, late: KvproxyError) -> "Iterator[asyncio.Future[KvproxyError]]":
        """Yield a future that receives `late` at the `deadline` (time of the event loop), or an error when the proxy stops."""
        loop = asyncio.get_running_loop()
        end: asyncio.Future[KvproxyError] = loop.create_future()
        if self._stopped is not None:
            self.end(end, self._stopped, "drain_seconds")
        self._open.add(end)
        timer = loop.call_at(deadline, self.end, end, late, "request_seconds")
        try:
            yield end
        finally:
            timer.cancel()
            self._open.discard(end)

    def end(self, end: "asyncio.Future[KvproxyError]", error: KvproxyError, limit: str) -> None:
        """End a request, and count the limit."""
        if not end.done():
            self._limited(limit)
            end.set_result(error)


class Lifetime:
    """The deadline of one request."""

    def __init__(self, lifetimes: Lifetimes, seconds: float) -> None:
        self._lifetimes = lifetimes
        self._seconds = seconds
        self._fix = _OWN
        self._began = asyncio.get_running_loop().time()

    def shorten(self, seconds: float | None) -> None:
        """Use the request's own timeout if it is shorter."""
        if seconds is not None and seconds < self._seconds:
            self._seconds, self._fix = seconds, _ASKED

    def over(self) -> "AbstractContextManager[asyncio.Future[KvproxyError]]":
        """Return a context with a future that receives an error at the deadline, or when the proxy stops."""
        late = DeadlineExceeded(f"the request was not answered within {self._seconds:g} s: {self._fix}")
        return self._lifetimes.open(self._began + self._seconds, late)
