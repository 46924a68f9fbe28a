"""How long requests may take: each until its deadline, and all of them until the proxy stops."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

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

    @contextlib.contextmanager
    def until(self, deadline: float, seconds: float, fix: str) -> Iterator["asyncio.Future[KvproxyError]"]:
        """A future that tells of the end; its error names the time and what gives more."""
        loop = asyncio.get_running_loop()
        end: asyncio.Future[KvproxyError] = loop.create_future()
        late = DeadlineExceeded(f"the request was not answered within {seconds:g} s: {fix}")
        timer = loop.call_at(deadline, self._end, end, late, "request_seconds")
        if self._stopped is not None:
            self._end(end, self._stopped, "drain_seconds")
        self._open.add(end)
        try:
            yield end
        finally:
            self._open.discard(end)
            timer.cancel()

    def _end(self, end: "asyncio.Future[KvproxyError]", error: KvproxyError, limit: str) -> None:
        if not end.done():
            self._limited(limit)
            end.set_result(error)


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

    def over(self) -> contextlib.AbstractContextManager["asyncio.Future[KvproxyError]"]:
        """While this is entered, a future that gets the error to end the request with, when its time is over."""
        return self._all.until(self._began + self._seconds, self._seconds, self._fix)
