"""Omits the proxy's fields for the provider's cache for models of an upstream that refuse these fields."""

import logging
from collections.abc import Awaitable, Callable

from kvproxy.apis.api_request import ApiRequest
from kvproxy.backends.protocol import RelayedResponse

_MAX_MODELS = 1_000
_REFUSED = 400
_log = logging.getLogger("kvproxy")


class RefusedCacheFields:
    """The models for which one upstream refused breakpoints and other fields that the client did not send."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._models: set[str] = set()

    async def send(
        self, request: ApiRequest, send: Callable[[ApiRequest], Awaitable[RelayedResponse]]
    ) -> RelayedResponse:
        """Send a request, and again without the proxy's fields if it is refused; see `RelayedResponse.lacks_cache_fields`."""
        if request.unmarked_body is None:
            return await send(request)
        if request.model not in self._models:
            reply = await send(request)
            if reply.status != _REFUSED:
                return reply
            await reply.close()
        request = request.without_cache_fields()
        reply = await send(request)
        reply.lacks_cache_fields = True
        if reply.status == 200 and request.model not in self._models and len(self._models) < _MAX_MODELS:
            self._models.add(request.model)
            message = "%s refuses breakpoints and diagnoses for %s, so kvproxy adds none there"
            _log.warning(message, self._url, request.model)
        return reply
