"""How long requests may take: each until its deadline, and all of them until the proxy stops."""

import asyncio
from collections.abc import Callable

from kvproxy.apis.control import TIMEOUT
from kvproxy.errors import DeadlineExceeded, KvproxyError

_OWN = "see the setting limits.request_seconds"
_ASKED = f"the header {TIMEOUT} asks for no more: give it a longer time, or leave it out"


class Lifetimes:
    """The requests under way of one proxy.

    Args:
        seconds: that a request may take.
        limited: called with the name of the limit that ended one.
    """

    def __init__(self, seconds: float, limited: Callable[[str], None]) -> None:
        self._seconds = seconds
        self._limited = limited
        self._open: set[asyncio.Future[KvproxyError]] = set()
        self._stopped: KvproxyError | None = None
        self.stopping = False
        """The proxy takes no new requests: streams that have no end of their own end now."""

    def begin(self) -> "Lifetime":
        """Of a request that begins now."""
        return Lifetime(self, self._seconds)

    def end_all(self, error: KvproxyError) -> None:
        """End every request, also those that wait for their end only later."""
        self._stopped = error
        for end in self._open:
            self._end(end, error, "drain_seconds")

    def enter(self, end: "asyncio.Future[KvproxyError]") -> None:
        """A request is under way until its end, or until it leaves."""
        if self._stopped is not None:
            self._end(end, self._stopped, "drain_seconds")
        self._open.add(end)

    def leave(self, end: "asyncio.Future[KvproxyError]") -> None:
        """A request is over."""
        self._open.discard(end)

    def late(self, end: "asyncio.Future[KvproxyError]", seconds: float, fix: str) -> None:
        """End a request whose time is over."""
        self._end(end, DeadlineExceeded(f"the request was not answered within {seconds:g} s: {fix}"), "request_seconds")

    def _end(self, end: "asyncio.Future[KvproxyError]", error: KvproxyError, limit: str) -> None:
        if not end.done():
            self._limited(limit)
            end.set_result(error)


class Ending:
    """While it is entered, a future that tells of a request's end; its error names the time and what gives more."""

    __slots__ = ("_all", "_deadline", "_end", "_fix", "_seconds", "_timer")

    def __init__(self, all_of_them: Lifetimes, deadline: float, seconds: float, fix: str) -> None:
        self._all = all_of_them
        self._deadline = deadline
        self._seconds = seconds
        self._fix = fix

    def __enter__(self) -> "asyncio.Future[KvproxyError]":
        loop = asyncio.get_running_loop()
        self._end: asyncio.Future[KvproxyError] = loop.create_future()
        self._timer = loop.call_at(self._deadline, self._all.late, self._end, self._seconds, self._fix)
        self._all.enter(self._end)
        return self._end

    def __exit__(self, *_: object) -> None:
        self._all.leave(self._end)
        self._timer.cancel()


class Lifetime:
    """How long one request may take."""

    def __init__(self, all_of_them: Lifetimes, seconds: float) -> None:
        self._all = all_of_them
        self._seconds = seconds
        self._fix = _OWN
        self._began = asyncio.get_running_loop().time()

    def shorten(self, seconds: float | None) -> None:
        """Take what the request asks for, where it asks for less."""
        if seconds is not None and seconds < self._seconds:
            self._seconds, self._fix = seconds, _ASKED

    def over(self) -> Ending:
        """While this is entered, a future that gets the error to end the request with, when its time is over."""
        return Ending(self._all, self._began + self._seconds, self._seconds, self._fix)
