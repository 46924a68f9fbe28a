"""Wait for a condition."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

# Only a condition that stays false takes this long; a busy machine may need minutes.
_SECONDS = 300.0


def until(condition: Callable[[], Any], seconds: float = _SECONDS, interval: float = 0.03) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"the condition is false after {seconds:g} s"
        time.sleep(interval)


async def until_async(condition: Callable[[], Any], seconds: float = _SECONDS, interval: float = 0.01) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"the condition is false after {seconds:g} s"
        await asyncio.sleep(interval)
