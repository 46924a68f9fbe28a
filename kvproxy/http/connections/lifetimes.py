"""Deadlines of requests: each has its own, and all requests end when the proxy stops."""

import asyncio
from collections.abc import Callable

from kvproxy.apis.control import TIMEOUT
from kvproxy.errors import DeadlineExceeded, KvproxyError

_OWN = "raise the setting limits.request_seconds"
_ASKED = f"the header {TIMEOUT} asks for no more: give it a longer time, or leave it out"


class Lifetimes:
    """The deadlines of all requests in flight.

    Args:
        seconds: default time of a request.
        limited: called with the name of the limit that ended a request.
    """

    def __init__(self, seconds: float, limited: Callable[[str], None]) -> None:
        self._seconds = seconds
        self._limited = limited
        self._open: set[asyncio.Future[KvproxyError]] = set()
        self._stopped: KvproxyError | None = None
        self.stopping = False
        """The proxy is stopping. Endless streams, such as the live log, end now."""

    def begin(self) -> "Lifetime":
        """Begin the lifetime of a request."""
        return Lifetime(self, self._seconds)

    def end_all(self, error: KvproxyError) -> None:
        """End all requests, and those that register later."""
        self._stopped = error
        for end in self._open:
            self._end(end, error, "drain_seconds")

    def enter(self, end: "asyncio.Future[KvproxyError]") -> None:
        """Register a request."""
        if self._stopped is not None:
            self._end(end, self._stopped, "drain_seconds")
        self._open.add(end)

    def leave(self, end: "asyncio.Future[KvproxyError]") -> None:
        """Unregister a request."""
        self._open.discard(end)

    def late(self, end: "asyncio.Future[KvproxyError]", seconds: float, fix: str) -> None:
        """End a request after its deadline."""
        self._end(end, DeadlineExceeded(f"the request was not answered within {seconds:g} s: {fix}"), "request_seconds")

    def _end(self, end: "asyncio.Future[KvproxyError]", error: KvproxyError, limit: str) -> None:
        if not end.done():
            self._limited(limit)
            end.set_result(error)


class Ending:
    """A context manager whose future receives the error that ends the request."""

    __slots__ = ("_deadline", "_end", "_fix", "_lifetimes", "_seconds", "_timer")

    def __init__(self, lifetimes: Lifetimes, deadline: float, seconds: float, fix: str) -> None:
        self._lifetimes = lifetimes
        self._deadline = deadline
        self._seconds = seconds
        self._fix = fix

    def __enter__(self) -> "asyncio.Future[KvproxyError]":
        loop = asyncio.get_running_loop()
        self._end: asyncio.Future[KvproxyError] = loop.create_future()
        self._timer = loop.call_at(self._deadline, self._lifetimes.late, self._end, self._seconds, self._fix)
        self._lifetimes.enter(self._end)
        return self._end

    def __exit__(self, *_: object) -> None:
        self._lifetimes.leave(self._end)
        self._timer.cancel()


class Lifetime:
    """The deadline of a request."""

    def __init__(self, lifetimes: Lifetimes, seconds: float) -> None:
        self._lifetimes = lifetimes
        self._seconds = seconds
        self._fix = _OWN
        self._began = asyncio.get_running_loop().time()

    def shorten(self, seconds: float | None) -> None:
        """Use the request's own timeout if it is shorter."""
        if seconds is not None and seconds < self._seconds:
            self._seconds, self._fix = seconds, _ASKED

    def over(self) -> Ending:
        """A context manager whose future receives an error at the deadline."""
        return Ending(self._lifetimes, self._began + self._seconds, self._seconds, self._fix)
