"""Sends one request to the backend for all identical requests in flight.

A client that joins later also receives the earlier chunks. When the last client disconnects, the request is cancelled.
Backpressure: a response that is small enough to store stays in memory, and the proxy reads as fast as the fastest client.
Of a larger response, chunks that all clients have received are dropped, and the proxy reads as fast as the slowest client.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable
from dataclasses import replace

from kvproxy.apis.json import dumps
from kvproxy.backends.protocol import Backend, Headers
from kvproxy.exchange import Exchange
from kvproxy.flow.backend_response import BackendResponse, open_response, stored_response, why_headers_forbid_storing
from kvproxy.flow.quota_charges import send_charged
from kvproxy.flow.store_response import ResponseRecorder, ResponseWriter, read_response_directives
from kvproxy.index.errors import CacheStoreError
from kvproxy.index.pending_writes import PendingWrite
from kvproxy.journal.reasons import reason_of_failure
from kvproxy.shared_state import SharedState

MAX_UNSENT_BYTES = 256 * 1024  # Read from the backend, but not received by a client yet.
PARSE_STEP_BYTES = 4 * 1024  # Parsed before other tasks may run: about 25 events, or half a millisecond.
_END_SECONDS = 0.25  # Maximum time from a stream's final event until its end.


class SharedRequest:
    def __init__(self, open: Callable[[], Awaitable[BackendResponse]], recorder: ResponseRecorder) -> None:
        self._open = open
        self._recorder = recorder
        self._chunks: list[bytes] = []
        self._dropped = 0
        self._size = 0
        self._read: dict[object, tuple[int, int]] = {}  # Chunks and bytes by client.
        self._changed = asyncio.Event()
        self._client_moved = asyncio.Event()
        self.error: BaseException | None = None
        self.response: BackendResponse | None = None
        self.ended = False
        self._pending_write: PendingWrite | None = None
        self.num_clients = 0
        self._started = time.perf_counter()
        self.task = asyncio.create_task(self._run())

    @property
    def is_joinable(self) -> bool:
        return not (self.ended or self._dropped or self.task.cancelling())

    async def wait_until_stored(self) -> bool:
        """Wait until the store has committed the response; return False if it is not stored."""
        return self._pending_write is not None and await self._pending_write.wait_until_stored()

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
            if response is not None:
                response.facts.seconds = time.perf_counter() - self._started
            self._notify_clients()
            if response is not None:
                await response.close()

    async def _relay(self, response: BackendResponse) -> None:
        recorded = False
        chunks = aiter(response.chunks)
        following: asyncio.Future[bytes | None] | None = None
        try:
            while (chunk := await (following or anext(chunks, None))) is not None:
                following = None
                if response.streams and response.facts.first_chunk_seconds is None:
                    response.facts.first_chunk_seconds = time.perf_counter() - self._started
                if not recorded and await self._record_chunk(response, chunk):
                    # A response that continues after its end is not stored.
                    following = asyncio.ensure_future(anext(chunks, None))
                    await asyncio.wait({following}, timeout=_END_SECONDS)
                    if not following.done() or following.exception() is not None or following.result() is None:
                        recorded = True
                        self._pending_write = await self._recorder.finish(response)
                self._chunks.append(chunk)
                self._size += len(chunk)
                self._notify_clients()
                if not response.single_chunk:
                    await self._wait_for_clients()
        finally:
            if following is not None:
                following.cancel()
        if not recorded:
            self._pending_write = await self._recorder.finish(response)

    async def _record_chunk(self, response: BackendResponse, chunk: bytes) -> bool:
        if not response.streams or len(chunk) <= PARSE_STEP_BYTES:
            return self._recorder.push(response, chunk)
        complete = False
        for start in range(0, len(chunk), PARSE_STEP_BYTES):
            complete = self._recorder.push(response, chunk[start : start + PARSE_STEP_BYTES])
            await asyncio.sleep(0)
        return complete

    def _notify_clients(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_for_clients(self) -> None:
        while self._size > MAX_UNSENT_BYTES:
            is_large = self._size > self._recorder.limit
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

    def begin(self, exchange: Exchange) -> None:
        """Record in a client's exchange that the response begins, or that the request ended without a response."""
        exchange.layer = "forward"
        exchange.first_byte = time.perf_counter()
        if self.response is not None:
            exchange.status, exchange.facts = self.response.status, self.response.facts

    def end(self, exchange: Exchange) -> None:
        """Record in a client's exchange how the response ended, and remove the client."""
        exchange.ended = time.perf_counter()
        if self.ended and self.error is not None:
            exchange.failure = reason_of_failure(self.error)
        if not self.ended:
            # Later facts are not about this client's response.
            exchange.client_disconnected, exchange.facts = True, replace(exchange.facts)
        self.release()

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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.ended and self._size < MAX_UNSENT_BYTES:
                    await self._changed.wait()
        return self.ended and self.error is None

    async def body(self) -> bytes:
        return b"".join([chunk async for chunk in self.chunks()])

    async def chunks(self, *, confirm: bool = False) -> AsyncIterator[bytes]:
        """Yield the whole response to one client. Raises the error that ended the response.

        With `confirm`, the last chunks are delayed until the store has committed the response.
        """
        client, sent, size = object(), self._dropped, 0
        self._read[client] = sent, size
        try:
            while True:
                changed = self._changed
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
                if sent == self._dropped + len(self._chunks) and changed is self._changed:
                    await changed.wait()
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
        shared = self._joinable.get(key)
        # A request whose last client has just left is being cancelled.
        joined = shared is not None and shared.is_joinable
        if shared is None or not joined:
            shared = self._joinable[key] = make()
            self._in_flight.add(shared)
            shared.task.add_done_callback(lambda task: self._on_ended(key, shared, task))
        shared.num_clients += 1
        return shared, joined

    def _on_ended(self, key: Hashable, shared: SharedRequest, task: "asyncio.Task[None]") -> None:
        self._in_flight.discard(shared)
        if self._joinable.get(key) is shared:
            del self._joinable[key]
        # Without this, the cancelled task's traceback keeps the request alive.
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()

    async def close(self) -> None:
        await cancel_tasks(shared.task for shared in self._in_flight)


class SingleFlight:
    """Sends identical requests in flight to the backend only once, also in other proxies with the same PostgreSQL store."""

    def __init__(self, backend: Backend, writer: ResponseWriter, shared: SharedState | None = None) -> None:
        self.requests = SharedRequests()
        self._backend = backend
        self._writer = writer
        self._shared = shared
        self._releases: set[asyncio.Task[None]] = set()

    def requires_own_response(self, exchange: Exchange) -> bool:
        return exchange.api_request.control.no_cache or not self._allows_storing(exchange)

    def _allows_storing(self, exchange: Exchange) -> bool:
        request = exchange.api_request
        return exchange.cacheable and not request.control.no_store and self._writer.lifetime(request) > 0

    def requested_ttl(self, exchange: Exchange, response_headers: Headers) -> float | None:
        """Return the response's TTL in seconds if the request sets a TTL; None without a TTL, or if it forbids storing."""
        request = exchange.api_request
        is_set = request.control.ttl is not None and self._allows_storing(exchange)
        return self._writer.lifetime(request, read_response_directives(response_headers)) if is_set else None

    def join(self, exchange: Exchange) -> tuple[SharedRequest, bool]:
        """Join an identical request of the same tenant, or start one; see `SharedRequests.join`."""
        request, may_store = exchange.api_request, self._allows_storing(exchange)
        echoed = request.api.fields.echo(request.body)
        # The cache key does not contain the language, and a response may depend on it.
        language = request.headers.get("accept-language")
        form = (request.stream, dumps(request.body.get("stream_options")), dumps(echoed, sort_keys=True), language)
        unique = object() if self.requires_own_response(exchange) else None
        # Tenants must not share errors and cookies.
        return self.requests.join(
            (exchange.cache_key.exact, request.tenant, form, unique),
            lambda: SharedRequest(
                lambda: self._send_once(exchange), ResponseRecorder(self._writer, exchange, may_store=may_store)
            ),
        )

    async def _send_once(self, exchange: Exchange) -> BackendResponse:
        shared = self._shared
        if shared is None or self.requires_own_response(exchange):
            return await self._send(exchange)
        try:
            await shared.acquire_lease(exchange.cache_key.exact)
        except CacheStoreError:
            return await self._send(exchange)
        try:
            response = await self._find_stored(exchange) or await self._send(exchange)
        except BaseException:
            self._release_lease_later(shared, exchange)
            raise
        close = response.close

        async def close_and_release() -> None:
            await close()
            self._release_lease_later(shared, exchange)

        response.close = close_and_release
        return response

    async def _find_stored(self, exchange: Exchange) -> BackendResponse | None:
        try:
            entry = await self._writer.find_fresh(exchange)
        except CacheStoreError:
            return None
        return None if entry is None else stored_response(exchange.api_request.api, entry)

    def _release_lease_later(self, shared: SharedState, exchange: Exchange) -> None:
        task = asyncio.create_task(self._release_lease(shared, exchange.cache_key.exact))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release_lease(self, shared: SharedState, key: str) -> None:
        await self._writer.wait_until_stored(key)
        with contextlib.suppress(CacheStoreError):
            await shared.release_lease(key)

    async def _send(self, exchange: Exchange) -> BackendResponse:
        request, limit = exchange.api_request, self._writer.settings.max_response_bytes
        if exchange.account is not None:
            response = await send_charged(request, exchange.account, self._backend, limit)
        else:
            response = open_response(request, await self._backend.send(request), limit)
        if response.status == 200:
            keyed = exchange.cache_key.headers
            response.facts.not_stored = why_headers_forbid_storing(response.headers, request.control.rule, keyed)
        return response


async def cancel_tasks(tasks: "Iterable[asyncio.Task[None]]") -> None:
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)
