"""The layer that calls the backend once for all identical requests, and the layers of this call."""

import asyncio
import contextlib
import time
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from secrets import token_hex

from kvproxy.apis.json import dumps
from kvproxy.apis.not_stored import Cause, NotStored
from kvproxy.backends.protocol import Backend, RelayedResponse, ServingUpstream
from kvproxy.clients.shared_state import SharedState
from kvproxy.errors import UpstreamProtocolError
from kvproxy.exchange import Answer, EqualRequests, Exchange, ForwardReason, ResponseFacts
from kvproxy.flow.backend_response import BackendResponse, open_response, stored_response, why_headers_forbid_storing
from kvproxy.flow.layers.cached import StoredResponses
from kvproxy.flow.layers.layer import Layer, Prediction, Rest, Send
from kvproxy.flow.quota_charges import send_charged
from kvproxy.flow.single_flight import SharedRequest, SharedRequests
from kvproxy.flow.store_response import ResponseRecorder, ResponseWriter
from kvproxy.index.entry import Entry
from kvproxy.index.errors import CacheStoreError
from kvproxy.journal.reasons import reason_of_failure

HOLD_SECONDS = 1.0
"""Maximum delay of the headers of a response without a stream, so that `Cache-Status` can name the stored response."""


def begin_response(exchange: Exchange, shared: SharedRequest) -> None:
    """Record in a client's exchange that the response begins, or that the request ended without a response."""
    exchange.layer = "forward"
    exchange.first_byte = time.perf_counter()
    if shared.response is not None:
        exchange.status, exchange.facts = shared.response.status, shared.response.facts


def end_response(exchange: Exchange, shared: SharedRequest) -> None:
    """Record in a client's exchange how the response ended, and remove the client."""
    exchange.ended = time.perf_counter()
    if shared.ended and shared.error is not None:
        exchange.failure = reason_of_failure(shared.error)
    if not shared.ended:
        # Later facts are not about this client's response.
        exchange.client_disconnected, exchange.facts = True, replace(exchange.facts)
    shared.release()


class JoinOrForward(Layer):
    """Joins an identical request in flight, or forwards the request to the backend.

    Args:
        send: sends a request through the sending layers of `path.py`.

    Attributes:
        requests: the requests in flight.
    """

    def __init__(self, send: Send, writer: ResponseWriter, responses: StoredResponses) -> None:
        super().__init__()
        self.requests = SharedRequests()
        self._equal_requests: dict[str, tuple[EqualRequests, set[SharedRequest]]] = {}
        self._send = send
        self._writer = writer
        self._responses = responses

    def join(self, exchange: Exchange) -> tuple[SharedRequest, bool]:
        """Join an identical request of the same tenant, or start one; see `SharedRequests.join`."""
        return self.requests.join(self._key(exchange), lambda: self._start(exchange))

    def _start(self, exchange: Exchange) -> SharedRequest:
        key = exchange.cache_key.exact
        equal, running = self._equal_requests.get(key, (EqualRequests(), set()))
        # The client of an ended response may have asked again before the task's callbacks run.
        exchange.is_concurrent = any(not other.ended for other in running)
        if not exchange.is_concurrent:
            equal, running = EqualRequests(), set()
        exchange.equal_requests = equal
        max_bytes = self._writer.max_bytes * exchange.size_factor

        async def send() -> BackendResponse:
            if exchange.storable:
                exchange.computation = await self._writer.begin_computation(exchange.cache_key)
            return await self._send(exchange)

        shared = SharedRequest(send, max_bytes, exchange.api_request.delivery, lambda: exchange.computation)
        running.add(shared)
        self._equal_requests[key] = equal, running
        shared.task.add_done_callback(lambda _: self._on_ended(key, running, shared))
        return shared

    def _on_ended(self, key: str, running: set[SharedRequest], shared: SharedRequest) -> None:
        running.discard(shared)
        if not running and key in self._equal_requests and self._equal_requests[key][1] is running:
            del self._equal_requests[key]

    def _key(self, exchange: Exchange) -> Hashable:
        request = exchange.api_request
        echoed = request.api.fields.echo(request.body)
        # The cache key does not contain the language, and a response may depend on it.
        language = request.headers.get("accept-language")
        options = request.body.get("stream_options")
        form = (request.stream, options and dumps(options), dumps(echoed, sort_keys=True), language)
        unique = object() if exchange.requires_own_response else None
        # Tenants must not share errors and cookies.
        return exchange.cache_key.exact, request.tenant, form, unique

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        key = self._key(exchange)
        running = self.requests.joinable(key)
        if running is not None and await self._writer.is_invalidated(running.computation()):
            self.requests.detach(key, running)
        shared, exchange.was_collapsed = self.join(exchange)
        try:
            return await self._answer_from(exchange, shared)
        except BaseException:
            if shared.response is None and shared.delivery.upstream:
                upstream = ServingUpstream(shared.delivery.upstream, fallback=shared.delivery.fallback)
                exchange.facts = ResponseFacts(upstream)
            shared.release()
            raise

    async def _answer_from(self, exchange: Exchange, shared: SharedRequest) -> Answer:
        confirm = exchange.api_request.control.confirm
        response = await shared.wait_for_head()
        if response.entries:
            stored = await self._responses.replay(exchange, response.entries)
            shared.release()
            return stored
        complete = not response.streams and await shared.wait_until_complete(None if confirm else HOLD_SECONDS)
        if shared.error is not None and not isinstance(shared.error, UpstreamProtocolError):
            raise shared.error
        exchange.forward_reason = self._forward_reason(exchange)
        if exchange.storable:
            exchange.requested_ttl = self._writer.requested_ttl(exchange.api_request, response.headers)
        exchange.stored = complete and confirm and await shared.wait_until_stored()
        begin_response(exchange, shared)
        if not complete:
            chunks = shared.chunks(confirm=confirm)
            end = partial(end_response, exchange, shared)
            return Answer(response.status, response.headers, chunks, end, is_broken=shared.error is not None)
        body = shared.body()
        end_response(exchange, shared)
        return Answer(response.status, response.headers, body)

    def _forward_reason(self, exchange: Exchange) -> ForwardReason:
        if not exchange.cacheable or exchange.api_request.control.rule.cache is False:
            return "bypass"
        if exchange.is_entry_refused:
            return "request"
        if exchange.inputs is not None and exchange.inputs.cached:
            return "partial"
        return "stale" if exchange.has_stored_response else "uri-miss"

    async def predict(self, exchange: Exchange) -> Prediction | None:
        running = self.requests.joinable(self._key(exchange))
        is_joined = running is not None and not await self._writer.is_invalidated(running.computation())
        return Prediction("shared") if is_joined else None


class Lease:
    """Lets only one of several proxies with one store compute a response. The other proxies wait until it is stored."""

    def __init__(self, shared: SharedState | None, writer: ResponseWriter) -> None:
        self._shared = shared
        self._writer = writer
        self._releases: set[asyncio.Task[None]] = set()

    async def send(self, exchange: Exchange, rest: Send) -> BackendResponse:
        shared = self._shared
        if shared is None or exchange.requires_own_response:
            return await rest(exchange)
        try:
            # Equal arrays have one lease. Arrays that have only some inputs in common are computed at the same time.
            await shared.acquire_lease(exchange.cache_key.exact)
        except CacheStoreError:
            return await rest(exchange)
        try:
            response = await self._find_stored(exchange) or await rest(exchange)
        except BaseException:
            self._release_later(shared, exchange)
            raise
        close = response.close

        async def close_and_release() -> None:
            await close()
            self._release_later(shared, exchange)

        response.close = close_and_release
        return response

    async def _find_stored(self, exchange: Exchange) -> BackendResponse | None:
        entries: list[Entry] = []
        try:
            for key in exchange.keys_to_store:
                entry = await self._writer.find_fresh(exchange, key)
                if entry is None:
                    return None
                entries.append(entry)
        except CacheStoreError:
            return None
        return stored_response(exchange.api_request.api, entries)

    def _release_later(self, shared: SharedState, exchange: Exchange) -> None:
        task = asyncio.create_task(self._release(shared, exchange.cache_key.exact, exchange.keys_to_store))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, shared: SharedState, key: str, stored: Sequence[str]) -> None:
        for each in stored:
            await self._writer.wait_until_stored(each)
        with contextlib.suppress(CacheStoreError):
            await shared.release_lease(key)


class ChargeQuota:
    """Charges the response to its client's quota."""

    async def send(self, exchange: Exchange, rest: Send) -> BackendResponse:
        if exchange.account is None:
            return await rest(exchange)
        return await send_charged(exchange, exchange.account, lambda: rest(exchange))


class StoreResponse:
    """Records the response while it passes, and stores it."""

    def __init__(self, writer: ResponseWriter) -> None:
        self._writer = writer

    async def send(self, exchange: Exchange, rest: Send) -> BackendResponse:
        recorder = ResponseRecorder(self._writer, exchange)
        response = await rest(exchange)
        if response.status == 200:
            rule, keyed = exchange.api_request.control.rule, exchange.cache_key.headers
            response.facts.not_stored = why_headers_forbid_storing(response.headers, rule, keyed)
            upstream = response.facts.served_by
            if upstream is not None and upstream.fallback:
                response.facts.not_stored = NotStored(Cause.FALLBACK, upstream.fallback)
            if exchange.storable and not exchange.inputs_to_store:
                response.facts.planned_id = token_hex(16)
        recorder.record(response)
        return response


class CallBackend:
    """Sends the request to the backend."""

    def __init__(self, backend: Backend, max_bytes: int) -> None:
        self._backend = backend
        self._max_bytes = max_bytes

    async def send(self, exchange: Exchange, rest: Send) -> BackendResponse:
        request = exchange.api_request
        reply = await self._backend.send(request)
        if isinstance(reply, RelayedResponse) and reply.lacks_cache_fields:
            request = exchange.request = request.without_cache_fields()
        return open_response(request, reply, self._max_bytes * exchange.size_factor)
