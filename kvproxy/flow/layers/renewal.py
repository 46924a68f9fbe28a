"""Renews a stale response in the background after it was served (RFC 5861)."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import as_object, loads
from kvproxy.apis.request_directives import ordered_tags
from kvproxy.errors import KvproxyError
from kvproxy.exchange import Answer, ArrayInputs, Exchange, SingleRequest
from kvproxy.flow.background_requests import BackgroundRequests
from kvproxy.flow.layers.cached import RENEWAL_PREFIX
from kvproxy.flow.layers.cached_inputs import joint_request
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
    def in_flight(self) -> set[asyncio.Task[None]]:
        return set(self._in_flight.values())

    async def answer(self, exchange: Exchange, rest: Rest) -> Answer:
        answer = await rest(exchange)
        self._begin(exchange)
        return answer

    def _begin(self, exchange: Exchange) -> None:
        """Start to renew the responses of a stale-while-revalidate hit, unless the request forbids it."""
        control = exchange.api_request.control
        entries = [entry for entry in _stale_entries(exchange) if entry.key not in self._in_flight]
        if not entries or control.no_store or control.only_if_cached:
            return
        if len(self.in_flight) >= _MAX_IN_FLIGHT:
            self.count("stale", "skipped")
            return
        task = asyncio.create_task(self._renew(exchange, entries))
        self._in_flight |= dict.fromkeys((entry.key for entry in entries), task)
        task.add_done_callback(lambda _: self._forget(entries))

    def _forget(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._in_flight.pop(entry.key, None)

    async def _renew(self, exchange: Exchange, entries: Sequence[Entry]) -> None:
        try:
            renewal = await self._background_exchange(exchange, entries)
            response = await self._background.send(renewal, "revalidated")
            if response is not None and response.status < 400:
                self.count("stale", "revalidated")
                return
        except KvproxyError as error:
            _log.debug("%s was not computed anew: %s", entries[0].id[:12], error.message)
        except Exception:
            _log.exception("%s was not computed anew", entries[0].id[:12])
        self.count("stale", "failed")
        await asyncio.sleep(_RETRY_SECONDS)

    async def _background_exchange(self, exchange: Exchange, entries: Sequence[Entry]) -> Exchange:
        if exchange.inputs is None:
            request, key = await self._renewing_request(exchange, entries[0])
            inputs = None
        else:
            requests = {key.exact: (request, key) for request, key in exchange.inputs.stale}
            pairs = [(*requests[entry.key], entry) for entry in entries]
            singles = [(_renewing(request, entry), key) for request, key, entry in pairs]
            request, key = await joint_request(singles, self._background.compute_key)
            inputs = ArrayInputs([entry.key for entry in entries], singles)
        return Exchange(
            exchange.api,
            request.request_id,
            request.tenant,
            self._background.clock(),
            team=exchange.team,
            account=exchange.account,
            request=request,
            key=key,
            inputs=inputs,
            cacheable=True,
            storable=exchange.storable,
        )

    async def _renewing_request(self, exchange: Exchange, entry: Entry) -> SingleRequest:
        request, key = _renewing(exchange.api_request, entry), exchange.cache_key
        if key.exact != entry.key:
            own = replace(request, body=as_object(loads(entry.request)), raw=entry.request)
            try:
                own_key = await self._background.compute_key(own)
            except (ValueError, KvproxyError):
                own_key = key
            # A redacted request has another key. Then the response to the client's own request becomes a fresh neighbour.
            if own_key.exact == entry.key:
                request, key = own, own_key
        return request, key

    async def close(self) -> None:
        await cancel_tasks(self._in_flight.values())


def _renewing(served: ApiRequest, entry: Entry) -> ApiRequest:
    # The new response has another id.
    kept = (tag for tag in entry.tags if not tag.startswith(PROVIDER_ID_TAG))
    tags = ordered_tags((*served.control.tags, *kept))
    control = replace(served.control, tags=tags, confirm=False)
    # It does not continue the conversation of the client.
    return replace(served, control=control, request_id=RENEWAL_PREFIX + served.request_id, conversation=())


def _stale_entries(exchange: Exchange) -> Sequence[Entry]:
    """Return the responses that were served in their stale-while-revalidate period."""
    hit, inputs, lookup = exchange.hit, exchange.inputs, exchange.lookup
    if inputs is not None and exchange.status == 200 and (hit is None or hit.stale != "stale-if-error"):
        return [inputs.stored[key.exact] for _, key in inputs.stale]
    if hit is None or hit.stale != "stale-while-revalidate":
        return ()
    similar = None if lookup is None else lookup.entry
    entry = exchange.stored_entry if hit.match is None else similar
    return () if entry is None else (entry,)
