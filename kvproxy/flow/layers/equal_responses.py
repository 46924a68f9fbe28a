"""Finds the stored response to an equal request."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from kvproxy.apis.api_request import ApiRequest
from kvproxy.apis.json import JsonMap, as_object, dumps, loads
from kvproxy.exchange import CacheKey
from kvproxy.index.entry import Entry
from kvproxy.index.response_cache import ResponseCache

ComputeKey = Callable[[ApiRequest], Awaitable[CacheKey]]


class EqualResponses:
    """Finds the stored response to an equal request, or to one that differs in the format of the response only.

    Args:
        compute_key: see `RequestPath.compute_key`.
    """

    def __init__(self, cache: ResponseCache, compute_key: ComputeKey) -> None:
        self._cache = cache
        self._compute_key = compute_key

    async def find(self, request: ApiRequest, key: CacheKey) -> Entry | None:
        """Return the response with a key, or a converted one, which has this key and the id of the stored one."""
        entry = await self._cache.find(key.exact)
        if entry is not None:
            return entry
        # At a path without /v1, servers have other formats.
        body = None if request.path else request.api.in_other_format(request.body)
        if body is None:
            return None
        other = await self._compute_key(request.with_body(body))
        stored = await self._cache.find(other.exact)
        return None if stored is None else await asyncio.to_thread(_converted, stored, request, key.exact)


def _converted(stored: Entry, request: ApiRequest, key: str) -> Entry | None:
    response: JsonMap = as_object(loads(stored.response))
    converted = request.api.convert(response, request.body)
    return None if converted is None else replace(stored, key=key, response=dumps(converted))
