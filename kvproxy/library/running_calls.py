"""Counts the calls of a cache that are in progress, so that its end can wait for them."""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

CLOSED = "this cache is closed: open it again"
FORKED = (
    "this cache was opened before the process forked, which leaves its threads and connections behind: open it in each"
    " worker (gunicorn: in post_fork, or without --preload; multiprocessing: in the initializer)"
)
_OTHER_LOOP = "another event loop uses this cache: open one cache in each event loop, or open_cache for all threads"


class RunningCalls:
    """The calls in progress, in one event loop. Another loop may follow when it has ended."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._number = 0
        self._are_ended = asyncio.Event()
        self._are_ended.set()

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop and self._loop.is_running():
            raise RuntimeError(_OTHER_LOOP)
        self._loop = loop
        self._number += 1
        self._are_ended.clear()

    def __exit__(self, *error: object) -> None:
        self._number -= 1
        if not self._number:
            self._are_ended.set()

    async def wait_until_ended(self, seconds: float) -> None:
        """Return when no call is in progress, or after some seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._are_ended.wait()


class _Callee(Protocol):
    running_calls: RunningCalls

    def check_usable(self) -> None: ...


C = TypeVar("C", bound=_Callee)
P = ParamSpec("P")
T = TypeVar("T")


def counted_call(
    method: Callable[Concatenate[C, P], Awaitable[T]],
) -> Callable[Concatenate[C, P], Coroutine[Any, Any, T]]:
    """Count the calls of a method, which raises the RuntimeError of `check_usable`."""

    @functools.wraps(method)
    async def call(cache: C, /, *arguments: P.args, **named: P.kwargs) -> T:
        cache.check_usable()
        with cache.running_calls:
            return await method(cache, *arguments, **named)

    return call
