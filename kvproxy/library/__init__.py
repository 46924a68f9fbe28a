"""The response cache as a library: `open_cache`, or `open_async_cache` for asyncio."""

from kvproxy.library.async_cache import AsyncCache
from kvproxy.library.cached_answer import CachedAnswer
from kvproxy.library.open_cache import Cache, open_async_cache, open_cache

__all__ = ["AsyncCache", "Cache", "CachedAnswer", "open_async_cache", "open_cache"]
