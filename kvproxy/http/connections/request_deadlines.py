import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from kvproxy.apis.request_directives import TIMEOUT_HEADER
from kvproxy.errors import DeadlineExceeded, KvproxyError


class Deadlines:
    """The deadlines of all requests in flight.

    Args:
        seconds: default time limit of a request.
        on_limit: receives the name of the setting that ended a request.
    """

    def __init__(self, seconds: float, on_limit: Callable[[str], None]) -> None:
        self.seconds = seconds
        self.stopping = False
        """Whether endless streams, such as the live log, must end."""
        self._on_limit = on_limit
        self._pending: set[asyncio.Future[KvproxyError]] = set()
        self._final_error: KvproxyError | None = None

    def end_all(self, error: KvproxyError) -> None:
        self._final_error = error
        for expired in self._pending:
            self._expire(expired, error, "drain_seconds")

    @contextmanager
    def schedule(self, time: float, error: KvproxyError) -> Iterator[asyncio.Future[KvproxyError]]:
        """Yield a future. Its result becomes `error` at `time` of the event loop, or earlier the error of `end_all`."""
        loop = asyncio.get_running_loop()
        expired: asyncio.Future[KvproxyError] = loop.create_future()
        if self._final_error is not None:
            self._expire(expired, self._final_error, "drain_seconds")
        self._pending.add(expired)
        timer = loop.call_at(time, self._expire, expired, error, "request_seconds")
        try:
            yield expired
        finally:
            timer.cancel()
            self._pending.discard(expired)

    def _expire(self, expired: asyncio.Future[KvproxyError], error: KvproxyError, limit: str) -> None:
        if not expired.done():
            self._on_limit(limit)
            expired.set_result(error)


class Deadline:
    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._seconds = deadlines.seconds
        self._fix = "raise the setting limits.request_seconds"
        self._began = asyncio.get_running_loop().time()

    def shorten(self, seconds: float | None) -> None:
        if seconds is not None and seconds < self._seconds:
            self._seconds = seconds
            self._fix = f"the header {TIMEOUT_HEADER} asks for no more: give it a longer time, or leave it out"

    def expiration(self) -> AbstractContextManager[asyncio.Future[KvproxyError]]:
        """Yield a future that receives the error when the deadline passes, before the end of the `with` block."""
        error = DeadlineExceeded(f"the request was not answered within {self._seconds:g} s: {self._fix}")
        return self._deadlines.schedule(self._began + self._seconds, error)
