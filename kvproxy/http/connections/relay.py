"""ASGI responses that notice at once when their client has gone."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvproxy.apis.api import openai_error
from kvproxy.apis.sse import event
from kvproxy.errors import KvproxyError, UpstreamBroken
from kvproxy.http.connections.lifetimes import Lifetime

T = TypeVar("T")
Headers = list[tuple[str, str]]
BODILESS = (204, 304)
"""Statuses of responses without a body."""
_log = logging.getLogger("kvproxy")


async def unless_gone(
    request: Request, work: Coroutine[Any, Any, T], lifetime: Lifetime, uploaded: asyncio.Event | None = None
) -> T:
    """The result of some work, which is cancelled when the client disconnects or its time is over before it is done.

    Args:
        request: the client's.
        work: what to do for it.
        lifetime: how long the request may take.
        uploaded: see `RelayResponse`.

    Raises:
        ClientDisconnect: the client has gone.
        DeadlineExceeded: the time is over.
        ShuttingDown: the proxy stops.
    """
    me = asyncio.current_task()
    assert me is not None
    cancelled, stopped, over = me.cancelling(), False, False

    def stop(why: "asyncio.Future[Any]") -> None:
        nonlocal stopped
        if not why.cancelled():
            why.exception()
        if not stopped and not over:
            # What it waits for is told at once, and it goes no further.
            stopped = me.cancel()

    gone = asyncio.ensure_future(_disconnected(request.receive, uploaded))
    with lifetime.over() as end:
        gone.add_done_callback(stop)
        end.add_done_callback(stop)
        try:
            return await work
        except asyncio.CancelledError:
            if not stopped or me.cancelling() > cancelled + 1:
                raise
            raise (ClientDisconnect() if gone.done() else end.result()) from None
        finally:
            over = True
            gone.cancel()
            if stopped:
                me.uncancel()


async def _disconnected(receive: Receive, uploaded: asyncio.Event | None = None) -> None:
    if uploaded is not None:
        await uploaded.wait()
    while (await receive())["type"] != "http.disconnect":
        pass


class RelayResponse(Response):
    """Sends parts as they come.

    Where an upstream breaks off, so does this answer: its connection is closed in the middle. An error of our own becomes the
    last event of a stream; an answer that is none breaks off.

    Args:
        chunks: the parts.
        status: HTTP status.
        headers: names and values, repeated ones included.
        close: called once, whatever happens.
        lifetime: how long the request may take.
        tell: writes the last event of a stream that failed.
        uploaded: set when the request's body has been read; until then nobody else may read from the client.
    """

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        status: int,
        headers: Headers,
        close: Callable[[], Any],
        lifetime: Lifetime,
        tell: Callable[[KvproxyError], bytes] = lambda error: event(openai_error(error)),
        uploaded: asyncio.Event | None = None,
    ) -> None:
        self.status_code = status
        self.background = None
        self.raw_headers = encode(headers)
        self._chunks = chunks
        self._close = close
        self._lifetime = lifetime
        self._tell = tell if is_stream(headers) else None
        self._uploaded = uploaded
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_disconnected(receive, self._uploaded))
        error: KvproxyError | None = None
        try:
            with self._lifetime.over() as end:
                await asyncio.wait((sending, gone, end), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            elif end.done():
                error = end.result()
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
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
        except UpstreamBroken as error:
            # Without its last part the answer is incomplete, and the server closes the connection.
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
        if self._tell is None:
            _log.warning("an answer is broken off: %s", error)
            return
        await send({"type": "http.response.body", "body": self._tell(error), "more_body": False})


def is_stream(headers: Headers) -> bool:
    """Whether headers tell of server-sent events."""
    return any(name == "content-type" and value.startswith("text/event-stream") for name, value in headers)


def whole_response(body: bytes, status: int, headers: Headers) -> Response:
    """A response with a body that is all there."""
    response = Response(body, status)
    response.raw_headers = encode(headers)
    if status not in BODILESS and not any(name == "content-length" for name, _ in headers):
        response.raw_headers.append((b"content-length", str(len(body)).encode()))
    return response


def encode(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI takes them."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
