"""ASGI responses that end as soon as their client disconnects."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvproxy.backends.protocol import Headers, is_stream
from kvproxy.errors import KvproxyError, UpstreamProtocolError
from kvproxy.http.connections.request_deadlines import Deadline

T = TypeVar("T")
BODILESS = (204, 304)
JOINS_BODY = "kvproxy.joins_body"
"""Key in an ASGI message `http.response.start`: if true, head and body are written in one system call."""
_log = logging.getLogger("kvproxy")


async def cancel_on_disconnect(
    receive: Receive, work: Coroutine[Any, Any, T], deadline: Deadline, upload_done: asyncio.Event | None = None
) -> T:
    """Return the result of `work`; cancel it when the client disconnects or the deadline passes.

    Raises ClientDisconnect or the deadline's error. `work` may call `receive` until `upload_done` is set; this function
    detects disconnects afterwards.
    """
    working = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(_wait_for_disconnect(receive, upload_done))
    with deadline.expiration() as expired:
        try:
            await asyncio.wait((working, disconnected, expired), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise expired.result() if expired.done() else ClientDisconnect()
        finally:
            working.cancel()
            disconnected.cancel()
            await asyncio.gather(working, disconnected, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive, upload_done: asyncio.Event | None = None) -> None:
    if upload_done is not None:
        await upload_done.wait()
    while (await receive())["type"] != "http.disconnect":
        pass


class RelayResponse(Response):
    """Streams a body to the client.

    If the upstream's response breaks off, so does the client's. Any other error is sent as the last event of a stream;
    a response without events breaks off.

    Args:
        close: called once, also after an error.
        error_event: encodes an error as an event.
        upload_done: see `cancel_on_disconnect`.
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
        self.raw_headers = _encode(headers)
        self._chunks = chunks
        self._close = close
        self._deadline = deadline
        self._error_event = error_event if is_stream(headers) else None
        self._upload_done = upload_done
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error: KvproxyError | None = None
        try:
            await cancel_on_disconnect(receive, self._send(send), self._deadline, self._upload_done)
        except ClientDisconnect:
            pass
        except KvproxyError as ended:
            error = ended
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
            return
        except KvproxyError as error:
            await self._fail(send, error)
            return
        finally:
            close = getattr(self._chunks, "aclose", None)
            if close is not None:
                await close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _fail(self, send: Send, error: KvproxyError) -> None:
        if self._error_event is None:
            _log.warning("a response was interrupted: %s", error)
            return
        await send({"type": "http.response.body", "body": self._error_event(error), "more_body": False})


class WholeResponse(Response):
    def __init__(self, body: bytes, status: int, headers: Headers) -> None:
        super().__init__(body, status)
        self.raw_headers = _encode(headers)
        if status not in BODILESS and not any(name == "content-length" for name, _ in headers):
            self.raw_headers.append((b"content-length", str(len(body)).encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start | {JOINS_BODY: True})
        await send({"type": "http.response.body", "body": self.body})


def _encode(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
