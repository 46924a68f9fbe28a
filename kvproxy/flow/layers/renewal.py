"""Renews a stale response in the background after it was served (RFC 5861)."""

import asyncio
import logging
from dataclasses import replace

from kvproxy.apis.json import as_object, loads
from kvproxy.apis.request_directives import ordered_tags
from kvproxy.errors import KvproxyError
from kvproxy.exchange import Answer, Exchange
from kvproxy.flow.background_requests import BackgroundRequests
from kvproxy.flow.layers.cached import RENEWAL_PREFIX
from kvproxy.flow.layers.layer import Layer, Rest
from kvproxy.flow.single_flight import cancel_tasks
from kvproxy.index.entry import PROVIDER_ID_TAG, Entry

_MAX_IN_FLIGHT = 64
_RETRY_SECONDS = 1.0  # Between a failed renewal and the next renewal of the same response.
_log = logging.getLogger("kvproxy")


class Renewal(Layer):
    """Renews a stale response in the background after it was served.

    `counts` has the renewals by result: `revalidated`, `failed`, or `skipped` if too many were in flight.
    """

    def __init__(self, background: BackgroundRequests) -> None:
        super().__init__()
        self._background = background
        self._in_flight: dict[str, asyncio.Task[None]] = {}

    @property
    def in_flight(self) -> tuple[asyncio.Task[None], ...]:
        return tuple(self._in_flight.values())

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        answer = await rest(exchange)
        self._begin(exchange)
        return answer

    def _begin(self, exchange: Exchange) -> None:
        """Start to renew the response of a stale-while-revalidate hit, unless the request forbids it."""
        entry, control = _stale_entry(exchange), exchange.api_request.control
        if entry is None or entry.key in self._in_flight or control.no_store or control.only_if_cached:
            return
        if len(self._in_flight) >= _MAX_IN_FLIGHT:
            self.count("stale", "skipped")
            return
        task = self._in_flight[entry.key] = asyncio.create_task(self._renew(exchange, entry))
        task.add_done_callback(lambda _: self._in_flight.pop(entry.key, None))

    async def _renew(self, exchange: Exchange, entry: Entry) -> None:
        try:
            renewal = await self._background_exchange(exchange, entry)
            response = await self._background.send(renewal, "revalidated")
            if response is not None and response.status < 400:
                self.count("stale", "revalidated")
                return
        except KvproxyError as error:
            _log.debug("%s was not computed anew: %s", entry.id[:12], error.message)
        except Exception:
            _log.exception("%s was not computed anew", entry.id[:12])
        self.count("stale", "failed")
        await asyncio.sleep(_RETRY_SECONDS)

    async def _background_exchange(self, exchange: Exchange, entry: Entry) -> Exchange:
        served = exchange.api_request
        # The new response has another id.
        kept = (tag for tag in entry.tags if not tag.startswith(PROVIDER_ID_TAG))
        tags = ordered_tags((*served.control.tags, *kept))
        control = replace(served.control, tags=tags, confirm=False)
        # It does not continue the conversation of the client.
        request = replace(served, control=control, request_id=RENEWAL_PREFIX + served.request_id, conversation=())
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
            team=exchange.team,
            account=exchange.account,
            request=request,
            key=key,
            cacheable=True,
            storable=exchange.storable,
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
