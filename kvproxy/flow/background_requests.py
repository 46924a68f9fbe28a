"""Sends requests that no client waits for, and reports them like those of clients."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kvproxy.apis.api_request import ApiRequest
from kvproxy.errors import UpstreamProtocolError, UpstreamTimeout
from kvproxy.exchange import CacheKey, Exchange
from kvproxy.flow.backend_response import BackendResponse
from kvproxy.flow.finish import record_failure
from kvproxy.flow.layers.forwarded import begin_response, end_response
from kvproxy.flow.single_flight import SharedRequest
from kvproxy.layers import Layer

_MAX_SECONDS, _MAX_BYTES = 600.0, 64 * 2**20


@dataclass(frozen=True, slots=True)
class BackgroundRequests:
    """See above.

    Attributes:
        join: see `JoinOrForward.join`.
        compute_key: see `RequestPath.compute_key`.
        finish: receives the exchange of each request when it has ended.
        clock: returns seconds since the epoch.
    """

    join: Callable[[Exchange], tuple[SharedRequest, bool]]
    compute_key: Callable[[ApiRequest], Awaitable[CacheKey]]
    finish: Callable[[Exchange], None]
    clock: Callable[[], float]

    async def send(self, exchange: Exchange, layer: Layer) -> BackendResponse | None:
        """Send a request, store the response, and call `finish` with the exchange, whose layer becomes `layer`.

        Raises the request's error.

        If a client has an identical request in flight, share its response, and do not call `finish`.
        """
        shared, joined = self.join(exchange)
        try:
            await _read_to_end(shared)
            return shared.response
        except BaseException as error:
            record_failure(exchange, error)
            raise
        finally:
            begin_response(exchange, shared)
            end_response(exchange, shared)
            exchange.layer, exchange.first_byte = layer, exchange.backend_started
            if not joined:
                self.finish(exchange)


async def _read_to_end(shared: SharedRequest) -> None:
    size = 0
    try:
        async with asyncio.timeout(_MAX_SECONDS):
            async for chunk in shared.chunks():
                size += len(chunk)
                if size > _MAX_BYTES:
                    raise UpstreamProtocolError(f"the response to a background request has over {_MAX_BYTES:,} bytes")
    except TimeoutError:
        raise UpstreamTimeout(f"the response to a background request did not end within {_MAX_SECONDS:g} s") from None
