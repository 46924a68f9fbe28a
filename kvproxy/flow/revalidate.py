"""Revalidates a stale response in the background after it was served."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import as_object, loads
from kvproxy.errors import KvproxyError, UpstreamProtocolError, UpstreamTimeout
from kvproxy.exchange import CacheKey, Exchange, Layer
from kvproxy.flow.backend_response import BackendResponse
from kvproxy.flow.finish import record_failure
from kvproxy.flow.single_flight import SharedRequest, cancel_tasks
from kvproxy.index.entry import PROVIDER_ID_TAG, Entry

_MAX_IN_FLIGHT = 64
_MAX_SECONDS, _MAX_BYTES = 600.0, 64 * 2**20
_RETRY_SECONDS = 1.0  # Between a failed revalidation and the next revalidation of the same response.
_REQUEST_ID_PREFIX = "renewal-"
_log = logging.getLogger("kvproxy")


@dataclass(frozen=True, slots=True)
class BackgroundRequests:
    """Sends requests that no client waits for.

    Attributes:
        join: see `SingleFlight.join`.
        compute_key: see `Answerer.compute_key`.
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
            shared.begin(exchange)
            shared.end(exchange)
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


class Revalidator:
    def __init__(self, background: BackgroundRequests) -> None:
        self._background = background
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self.counts: Counter[str] = Counter()
        """Number of revalidations by result: `revalidated`, `failed`, or `skipped` if too many were in flight."""

    @property
    def in_flight(self) -> tuple[asyncio.Task[None], ...]:
        return tuple(self._in_flight.values())

    def begin(self, exchange: Exchange) -> None:
        """Start to revalidate the response of a stale-while-revalidate hit, unless the request forbids it."""
        entry, control = _stale_entry(exchange), exchange.api_request.control
        if entry is None or entry.key in self._in_flight or control.no_store or control.only_if_cached:
            return
        if len(self._in_flight) >= _MAX_IN_FLIGHT:
            self.counts["skipped"] += 1
            return
        task = self._in_flight[entry.key] = asyncio.create_task(self._revalidate(exchange, entry))
        task.add_done_callback(lambda _: self._in_flight.pop(entry.key, None))

    async def _revalidate(self, exchange: Exchange, entry: Entry) -> None:
        try:
            renewal = await self._background_exchange(exchange, entry)
            response = await self._background.send(renewal, "revalidated")
            if response is not None and response.status < 400:
                self.counts["revalidated"] += 1
                return
        except KvproxyError as error:
            _log.debug("%s was not computed anew: %s", entry.id[:12], error.message)
        except Exception:
            _log.exception("%s was not computed anew", entry.id[:12])
        self.counts["failed"] += 1
        await asyncio.sleep(_RETRY_SECONDS)

    async def _background_exchange(self, exchange: Exchange, entry: Entry) -> Exchange:
        served = exchange.api_request
        # The new response has another id.
        kept = {tag for tag in entry.tags if not tag.startswith(PROVIDER_ID_TAG)}
        tags = tuple(sorted({*served.control.tags, *kept}))
        control = replace(served.control, tags=tags, confirm=False)
        # It does not continue the conversation of the client.
        request = replace(served, control=control, request_id=_REQUEST_ID_PREFIX + served.request_id, conversation=())
        key = exchange.cache_key
        if key.exact != entry.key:
            own = replace(request, body=as_object(loads(entry.request)), raw=entry.request)
            try:
                own_key = await self._background.compute_key(own)
            except (ValueError, KvproxyError):
                own_key = key
            # A redacted request has another key. Then the response to the client's own request becomes a fresh neighbour.
            if own_key.exact == entry.key:
                request, key = own, own_key
        return Exchange(
            exchange.api,
            request.request_id,
            request.tenant,
            self._background.clock(),
            account=exchange.account,
            request=request,
            key=key,
            cacheable=True,
        )

    async def close(self) -> None:
        await cancel_tasks(self._in_flight.values())


def _stale_entry(exchange: Exchange) -> Entry | None:
    hit, lookup = exchange.hit, exchange.lookup
    if hit is None or hit.stale != "stale-while-revalidate":
        return None
    if hit.match is None:
        return exchange.stored_entry
    return None if lookup is None else lookup.entry
