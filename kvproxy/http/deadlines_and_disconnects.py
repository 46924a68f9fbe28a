"""Ends requests at their deadline, or when their client disconnects."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvproxy.apis.request_directives import TIMEOUT_HEADER
from kvproxy.backends.protocol import Headers, is_stream
from kvproxy.errors import ClientDeadlineExceeded, DeadlineExceeded, KvproxyError, UpstreamProtocolError
from kvproxy.http.exchange_middleware import exchange_of
from kvproxy.journal.reasons import reason_of_failure

T = TypeVar("T")
BODILESS = (204, 304)
_log = logging.getLogger("kvproxy")


class Deadlines:
    """The deadlines of all requests in flight. `on_limit` receives the name of the setting that ended a request."""

    def __init__(self, seconds: float, on_limit: Callable[[str], None]) -> None:
        self.seconds = seconds
        self.on_limit = on_limit
        self.stopping = False
        """Whether endless streams, such as the live log, must end."""
        self._error: KvproxyError | None = None
        self._running: set[_Interruption] = set()

    def end_all(self, error: KvproxyError) -> None:
        """End the requests in flight and all later ones with an error, at the end of the drain time."""
        self._error = error
        for interruption in self._running:
            self._end(interruption, error)

    def add(self, interruption: "_Interruption") -> None:
        """Interrupt a task when all requests end."""
        self._running.add(interruption)
        if self._error is not None:
            asyncio.get_running_loop().call_soon(self._end, interruption, self._error)

    def remove(self, interruption: "_Interruption") -> None:
        self._running.discard(interruption)

    def _end(self, interruption: "_Interruption", error: KvproxyError) -> None:
        if interruption.interrupt(error):
            self.on_limit("drain_seconds")


class _Interruption:
    """Cancels a task once, and keeps the cause."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._earlier = task.cancelling()
        self._is_over = False
        self.cause: Exception | None = None

    def interrupt(self, cause: Exception) -> bool:
        """Cancel the task. Return False if it was interrupted before, or the work is over."""
        if self._is_over or self.cause is not None:
            return False
        self.cause = cause
        return self._task.cancel()

    def on_disconnect(self, watching: "asyncio.Task[None]") -> None:
        if not watching.cancelled():
            watching.exception()
            self.interrupt(ClientDisconnect())

    def end(self) -> bool:
        """Take back the cancellation. Return False if somebody else has cancelled the task, or nobody has."""
        self._is_over = True
        return self.cause is not None and self._task.uncancel() <= self._earlier


class Deadline:
    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._seconds = deadlines.seconds
        self._setting: str | None = "request_seconds"
        self._began = asyncio.get_running_loop().time()

    def shorten(self, seconds: float | None) -> None:
        if seconds is not None and seconds < self._seconds:
            self._seconds = seconds
            self._setting = None

    async def cancel_when_over(
        self, receive: Receive, work: Coroutine[Any, Any, T], upload_done: asyncio.Event | None = None
    ) -> T:
        """Return the result of `work`; cancel it when the deadline passes or the client disconnects.

        Raises DeadlineExceeded or ClientDisconnect. `work` may call `receive` until `upload_done` is set; this
        function detects disconnects afterwards.
        """
        loop, interruption = asyncio.get_running_loop(), _Interruption()
        watching = loop.create_task(_wait_for_disconnect(receive, upload_done))
        watching.add_done_callback(interruption.on_disconnect)
        timer = loop.call_at(self._began + self._seconds, self._pass, interruption)
        self._deadlines.add(interruption)
        try:
            result = await work
        except BaseException:
            if not interruption.end():
                raise
        else:
            if not interruption.end():
                return result
        finally:
            self._deadlines.remove(interruption)
            timer.cancel()
            watching.cancel()
        try:
            assert interruption.cause is not None
            raise interruption.cause
        finally:
            # The traceback of the error refers to this frame.
            del interruption

    def _pass(self, interruption: _Interruption) -> None:
        if interruption.cause is None:
            interruption.interrupt(self._deadline_error())

    def _deadline_error(self) -> DeadlineExceeded:
        problem = f"the request was not answered within {self._seconds:g} s, the limit of"
        if self._setting is None:
            return ClientDeadlineExceeded(f"{problem} the header {TIMEOUT_HEADER}")
        self._deadlines.on_limit(self._setting)
        return DeadlineExceeded(f"{problem} the setting limits.{self._setting}")


async def _wait_for_disconnect(receive: Receive, upload_done: asyncio.Event | None) -> None:
    if upload_done is not None:
        await upload_done.wait()
    while (await receive())["type"] != "http.disconnect":
        pass


class RelayResponse(Response):
    """Streams a body to the client.

    If the upstream's response breaks off, so does the client's. Another error is sent as the last event if the response
    has events; otherwise the response breaks off. `close` is called once, also after an error.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        status: int,
        headers: Headers,
        close: Callable[[], Any],
        deadline: Deadline,
        error_event: Callable[[KvproxyError], bytes],
        upload_done: asyncio.Event | None = None,
    ) -> None:
        self.status_code = status
        self.background = None
        self.raw_headers = _encode_headers(headers)
        self._chunks = chunks
        self._close = close
        self._deadline = deadline
        self._error_event = error_event if is_stream(headers) else None
        self._upload_done = upload_done
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error: KvproxyError | None = None
        try:
            await self._deadline.cancel_when_over(receive, self._send(send), self._upload_done)
        except ClientDisconnect:
            pass
        except KvproxyError as ended:
            error = ended.with_traceback(None)
            # Otherwise, the interrupted response looks as if its client had disconnected.
            exchange_of(scope).failure = reason_of_failure(error)
        finally:
            closing = self._close()
            if closing is not None:
                await closing
        if error is not None and self._begun:
            await self._fail(send, error)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._begun = True
        try:
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except UpstreamProtocolError as error:
            # Without the last chunk, the server closes the connection.
            _log.warning("%s", error)
            error.__traceback__ = None
            return
        finally:
            close = getattr(self._chunks, "aclose", None)
            if close is not None:
                await close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _fail(self, send: Send, error: KvproxyError) -> None:
        if self._error_event is None:
            _log.warning("a response was interrupted: %s", error)
        else:
            await send({"type": "http.response.body", "body": self._error_event(error), "more_body": False})


class WholeResponse(Response):
    def __init__(self, body: bytes, status: int, headers: Headers) -> None:
        self.status_code = status
        self.background = None
        self.body = body
        self.raw_headers = _encode_headers(headers)
        if status not in BODILESS and not any(name == "content-length" for name, _ in headers):
            self.raw_headers.append((b"content-length", str(len(body)).encode()))


def _encode_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
