"""One call of the backend for all identical requests in flight.

A client that joins later also receives the earlier chunks. When the last client disconnects, the request is cancelled.
Backpressure: a response that is small enough to store stays in memory, and the proxy reads as fast as the fastest client.
Of a larger response, chunks that all clients have received are dropped, and the proxy reads as fast as the slowest client.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable

from kvproxy.apis.api_request import Delivery
from kvproxy.flow.backend_response import BackendResponse
from kvproxy.index.store import AnswerComputation

MAX_UNSENT_BYTES = 256 * 1024  # Read from the backend, but not received by a client yet.


class SharedRequest:
    """A call of the backend whose response all its clients receive.

    Args:
        open: sends the request, and returns when the response begins.
        max_bytes: see "Backpressure" above: the size of a response that is small enough to store.
        delivery: names the upstream that received the request.
        computation: returns that of the response; None before it begins, and if the response is not storable.
    """

    def __init__(
        self,
        open: Callable[[], Awaitable[BackendResponse]],
        max_bytes: int,
        delivery: Delivery | None = None,
        computation: Callable[[], AnswerComputation | None] = lambda: None,
    ) -> None:
        self.delivery = delivery or Delivery()
        self.computation = computation
        self._open = open
        self._max_bytes = max_bytes
        self._chunks: list[bytes] = []
        self._dropped = 0
        self._size = 0
        self._read: dict[object, tuple[int, int]] = {}  # Chunks and bytes by client.
        self._changed = asyncio.Event()
        self._client_moved = asyncio.Event()
        self.error: BaseException | None = None
        self.response: BackendResponse | None = None
        self.ended = False
        self.num_clients = 0
        self.task = asyncio.create_task(self._run())

    @property
    def is_joinable(self) -> bool:
        return not (self.ended or self._dropped or self.task.cancelling())

    async def wait_until_stored(self) -> bool:
        """Wait until the store has committed the response; return False if it is not stored."""
        write = None if self.response is None else self.response.write
        return write is not None and await write.wait_until_stored()

    async def _run(self) -> None:
        response: BackendResponse | None = None
        try:
            response = await self._open()
            self.response = response
            self._notify_clients()
            await self._relay(response)
        except asyncio.CancelledError:
            # A new error: the traceback of the raised one would keep this frame and the request alive.
            self.error = asyncio.CancelledError()
            raise
        except BaseException as error:
            self.error = error.with_traceback(None)
        finally:
            self.ended = True
            self._notify_clients()
            if response is not None:
                await response.close()

    async def _relay(self, response: BackendResponse) -> None:
        try:
            async for chunk in response.chunks:
                self._add_chunk(chunk if response.usage_filter is None else response.usage_filter.push(chunk))
                if not response.single_chunk:
                    await self._wait_for_clients()
        finally:
            if response.usage_filter is not None:
                self._add_chunk(response.usage_filter.end())

    def _add_chunk(self, chunk: bytes) -> None:
        if chunk:
            self._chunks.append(chunk)
            self._size += len(chunk)
            self._notify_clients()

    def _notify_clients(self) -> None:
        # Wakes all that wait now.
        self._changed.set()
        self._changed.clear()

    async def _wait_for_clients(self) -> None:
        while self._size > MAX_UNSENT_BYTES:
            is_large = self._size > self._max_bytes
            if is_large:
                self._drop_read_chunks()
            if self._size - self._bytes_read_by(min if is_large else max) <= MAX_UNSENT_BYTES:
                return
            self._client_moved.clear()
            await self._client_moved.wait()

    def _bytes_read_by(self, min_or_max: Callable[[list[int]], int]) -> int:
        not_started = [0] * (self.num_clients - len(self._read))
        return min_or_max([*(size for _, size in self._read.values()), *not_started] or [self._size])

    def _drop_read_chunks(self) -> None:
        if len(self._read) < self.num_clients:
            return
        read = min((chunks for chunks, _ in self._read.values()), default=0) - self._dropped
        if read > 0:
            del self._chunks[:read]
            self._dropped += read

    def release(self) -> None:
        """Remove a client. If it was the last client and the response has not ended, cancel the request."""
        self.num_clients -= 1
        self._client_moved.set()
        if self.num_clients == 0:
            # The traceback of a raised error would keep this request in memory.
            self.error = None
            if not self.ended:
                self.task.cancel()

    async def wait_for_head(self) -> BackendResponse:
        while self.response is None and not self.ended:
            await self._changed.wait()
        if self.response is None:
            assert self.error is not None
            raise self.error
        return self.response

    async def wait_until_complete(self, seconds: float | None) -> bool:
        """Wait until the response ends, exceeds `MAX_UNSENT_BYTES`, or `seconds` have passed. Return whether it is complete."""
        response = await self.wait_for_head()
        while response.single_chunk and not self.ended:
            await self._changed.wait()
        if not self.ended and self._size < MAX_UNSENT_BYTES:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not self.ended and self._size < MAX_UNSENT_BYTES:
                        await self._changed.wait()
        return self.ended and self.error is None

    def body(self) -> bytes:
        """Return the whole response, which must be complete. Nothing is dropped before this client has received it."""
        return b"".join(self._chunks)

    async def chunks(self, *, confirm: bool = False) -> AsyncIterator[bytes]:
        """Yield the whole response to one client. Raises the error that ended the response.

        With `confirm`, the last chunks are delayed until the store has committed the response.
        """
        client, sent, size = object(), self._dropped, 0
        self._read[client] = sent, size
        try:
            while True:
                while sent < self._dropped + len(self._chunks):
                    if confirm:
                        await self.wait_until_stored()
                    chunk = self._chunks[sent - self._dropped]
                    yield chunk
                    sent, size = sent + 1, size + len(chunk)
                    self._read[client] = sent, size
                    self._client_moved.set()
                if self.ended and sent == self._dropped + len(self._chunks):
                    break
                if sent == self._dropped + len(self._chunks):
                    await self._changed.wait()
            if self.error is not None:
                raise self.error
            if confirm:
                await self.wait_until_stored()
        finally:
            del self._read[client]
            self._client_moved.set()


class SharedRequests:
    def __init__(self) -> None:
        self._joinable: dict[Hashable, SharedRequest] = {}
        self._in_flight: set[SharedRequest] = set()

    def __len__(self) -> int:
        return len(self._in_flight)

    def join(self, key: Hashable, make: Callable[[], SharedRequest]) -> tuple[SharedRequest, bool]:
        """Return the request in flight with this key and True, or a new request and False. The caller must `release` it."""
        shared = self.joinable(key)
        joined = shared is not None
        if shared is None:
            shared = self._joinable[key] = make()
            self._in_flight.add(shared)
            shared.task.add_done_callback(lambda task: self._on_ended(key, shared, task))
        shared.num_clients += 1
        return shared, joined

    def joinable(self, key: Hashable) -> SharedRequest | None:
        """Return the request in flight that `join` would join."""
        shared = self._joinable.get(key)
        # A request whose last client has just left is being cancelled.
        return shared if shared is not None and shared.is_joinable else None

    def detach(self, key: Hashable, shared: SharedRequest) -> None:
        """Let no further client join a request."""
        if self._joinable.get(key) is shared:
            del self._joinable[key]

    def _on_ended(self, key: Hashable, shared: SharedRequest, task: "asyncio.Task[None]") -> None:
        self._in_flight.discard(shared)
        self.detach(key, shared)
        # Without this, the cancelled task's traceback keeps the request alive.
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()

    async def close(self) -> None:
        await cancel_tasks(shared.task for shared in self._in_flight)


async def cancel_tasks(tasks: "Iterable[asyncio.Task[None]]") -> None:
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)
