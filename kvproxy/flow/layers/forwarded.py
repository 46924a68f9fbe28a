"""The layer that calls the backend once for all identical requests, and the layers of this call."""

import asyncio
import contextlib
from functools import partial

from kvproxy.clients.shared_state import SharedState
from kvproxy.errors import UpstreamProtocolError
from kvproxy.exchange import Answer, Exchange, ForwardReason
from kvproxy.flow.answer import Answerer
from kvproxy.flow.backend_response import BackendResponse, open_response, stored_response, why_headers_forbid_storing
from kvproxy.flow.layers.layer import Prediction, Rest, Send
from kvproxy.flow.quota_charges import send_charged
from kvproxy.flow.single_flight import SharedRequest
from kvproxy.flow.store_response import ResponseRecorder
from kvproxy.index.errors import CacheStoreError

HOLD_SECONDS = 1.0
"""Maximum delay of the headers of a response without a stream, so that `Cache-Status` can name the stored response."""


class JoinOrForward:
    """Joins an identical request in flight, or forwards the request to the backend."""

    def __init__(self, parts: Answerer) -> None:
        self._parts = parts

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        shared, exchange.was_collapsed = self._parts.single_flight.join(exchange)
        try:
            return await self._answer_from(exchange, shared)
        except BaseException:
            shared.release()
            raise

    async def _answer_from(self, exchange: Exchange, shared: SharedRequest) -> Answer:
        confirm = exchange.api_request.control.confirm
        response = await shared.wait_for_head()
        if response.entry is not None:
            stored = await self._parts.lookups.replay(exchange, response.entry)
            shared.release()
            return stored
        complete = not response.streams and await shared.wait_until_complete(None if confirm else HOLD_SECONDS)
        if shared.error is not None and not isinstance(shared.error, UpstreamProtocolError):
            raise shared.error
        exchange.forward_reason = self._forward_reason(exchange)
        exchange.requested_ttl = self._parts.writer.requested_ttl(exchange, response.headers)
        exchange.stored = complete and confirm and await shared.wait_until_stored()
        shared.begin(exchange)
        if not complete:
            chunks = shared.chunks(confirm=confirm)
            end = partial(shared.end, exchange)
            return Answer(response.status, response.headers, chunks, end, is_broken=shared.error is not None)
        body = await shared.body()
        shared.end(exchange)
        return Answer(response.status, response.headers, body)

    def _forward_reason(self, exchange: Exchange) -> ForwardReason:
        if not exchange.cacheable or exchange.api_request.control.rule.cache is False:
            return "bypass"
        if exchange.is_entry_refused:
            return "request"
        return "uri-miss" if exchange.stored_entry is None else "stale"

    async def predict(self, exchange: Exchange) -> Prediction | None:
        return Prediction("shared") if self._parts.single_flight.is_in_flight(exchange) else None


class Lease:
    """Lets only one of several proxies with one store compute a response. The other proxies wait until it is stored."""

    def __init__(self, parts: Answerer) -> None:
        self._shared = parts.shared
        self._writer = parts.writer
        self._releases: set[asyncio.Task[None]] = set()

    async def send(self, exchange: Exchange, rest: Send) -> BackendResponse:
        shared = self._shared
        if shared is None or self._writer.requires_own_response(exchange):
            return await rest(exchange)
        try:
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
        try:
            entry = await self._writer.find_fresh(exchange)
        except CacheStoreError:
            return None
        return None if entry is None else stored_response(exchange.api_request.api, entry)

    def _release_later(self, shared: SharedState, exchange: Exchange) -> None:
        task = asyncio.create_task(self._release(shared, exchange.cache_key.exact))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, shared: SharedState, key: str) -> None:
        await self._writer.wait_until_stored(key)
        with contextlib.suppress(CacheStoreError):
            await shared.release_lease(key)


class ChargeQuota:
    """Charges the response to its client's quota."""

    def __init__(self, parts: Answerer) -> None:
        self._max_bytes = parts.writer.max_bytes

    async def send(self, exchange: Exchange, rest: Send) -> BackendResponse:
        if exchange.account is None:
            return await rest(exchange)
        return await send_charged(exchange.api_request, exchange.account, lambda: rest(exchange), self._max_bytes)


class StoreResponse:
    """Records the response while it passes, and stores it."""

    def __init__(self, parts: Answerer) -> None:
        self._writer = parts.writer

    async def send(self, exchange: Exchange, rest: Send) -> BackendResponse:
        recorder = ResponseRecorder(self._writer, exchange)
        response = await rest(exchange)
        if response.status == 200:
            rule, keyed = exchange.api_request.control.rule, exchange.cache_key.headers
            response.facts.not_stored = why_headers_forbid_storing(response.headers, rule, keyed)
        recorder.record(response)
        return response


class CallBackend:
    """Sends the request to the backend."""

    def __init__(self, parts: Answerer) -> None:
        self._backend = parts.backend
        self._max_bytes = parts.writer.max_bytes

    async def send(self, exchange: Exchange, rest: Send) -> BackendResponse:
        request = exchange.api_request
        return open_response(request, await self._backend.send(request), self._max_bytes)
