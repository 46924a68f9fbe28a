"""Timeouts of steps of a request, which its header `X-KVProxy-Timeout` sets."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from kvproxy.errors import ClientDeadlineExceeded

T = TypeVar("T")


async def with_timeout(seconds: float | None, work: Awaitable[T], problem: str) -> T:
    """Return the result of `work`. Raises ClientDeadlineExceeded after `seconds`; None sets no limit."""
    if seconds is None:
        return await work
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise ClientDeadlineExceeded(f"{problem} within x-kvproxy-timeout") from None
