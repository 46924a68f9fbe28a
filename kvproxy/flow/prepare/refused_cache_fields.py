"""Sends requests without the proxy's fields for the provider's cache to models that refuse these fields."""

import logging
from collections.abc import Awaitable, Callable

from kvproxy.apis.api_request import ApiRequest
from kvproxy.backends.protocol import RelayedResponse, Reply

_MAX_MODELS = 1_000
_REFUSED = 400
_log = logging.getLogger("kvproxy")


class RefusedCacheFields:
    """The models whose upstream refused breakpoints and other fields that the client did not send."""

    def __init__(self) -> None:
        self._models: set[str] = set()

    async def send(
        self, request: ApiRequest, send: Callable[[ApiRequest], Awaitable[Reply]]
    ) -> tuple[ApiRequest, Reply]:
        """Send a request, and again without the proxy's fields if it is refused. Return the last request, and its reply."""
        if request.model in self._models:
            request = request.without_cache_fields()
        reply = await send(request)
        if request.unmarked_body is None or not isinstance(reply, RelayedResponse) or reply.status != _REFUSED:
            return request, reply
        await reply.close()
        request = request.without_cache_fields()
        reply = await send(request)
        if isinstance(reply, RelayedResponse) and reply.status == 200 and len(self._models) < _MAX_MODELS:
            self._models.add(request.model)
            _log.warning("%s: the upstream refuses breakpoints and diagnoses, so kvproxy adds none", request.model)
        return request, reply
