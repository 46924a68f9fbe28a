"""Wait for a condition."""

import asyncio
import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"no success within {seconds:g} s"
        time.sleep(0.03)


async def until_async(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"no success within {seconds:g} s"
        await asyncio.sleep(0.01)
