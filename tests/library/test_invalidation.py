"""An answer whose computation began before an invalidation is returned to its callers, but neither shared nor stored."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from kvproxy import Cache, CacheSettings, open_async_cache, open_cache
from kvproxy.library import AsyncCache
from tests.polling import until, until_async

EXACT = CacheSettings(semantic=False)
Invalidate = Callable[[AsyncCache], Awaitable[object]]
COVERING: dict[str, Invalidate] = {
    "delete": lambda cache: cache.delete("q", "n"),
    "tag": lambda cache: cache.delete_tag("t"),
    "tag of the namespace": lambda cache: cache.delete_tag("t", "n"),
    "namespace": lambda cache: cache.clear("n"),
    "all": lambda cache: cache.clear(),
}
OTHER: dict[str, Invalidate] = {
    "delete": lambda cache: cache.delete("other", "n"),
    "namespace of the question": lambda cache: cache.delete("q"),
    "tag": lambda cache: cache.delete_tag("other"),
    "tag of another namespace": lambda cache: cache.delete_tag("t", "other"),
    "namespace": lambda cache: cache.clear("other"),
}


class Computations:
    """Computations that answer with their number when the test allows it."""

    def __init__(self) -> None:
        self.allowed: list[asyncio.Event] = []

    async def compute(self, question: str) -> str:
        self.allowed.append(asyncio.Event())
        number = len(self.allowed)
        await self.allowed[-1].wait()
        return f"answer {number}"

    def call(self, cache: AsyncCache) -> "asyncio.Task[str]":
        return asyncio.create_task(cache.get_or_set("q", self.compute, "n", tags=["t"]))

    async def until_running(self, number: int) -> None:
        await until_async(lambda: len(self.allowed) == number)


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("invalidate", COVERING.values(), ids=COVERING)
async def test_later_callers_compute_again(tmp_path: Path, invalidate: Invalidate, is_own: bool) -> None:
    computations = Computations()
    async with open_async_cache(tmp_path / "r.db", EXACT) as cache, open_async_cache(tmp_path / "r.db", EXACT) as other:
        early = [computations.call(cache), computations.call(cache)]
        await computations.until_running(1)
        await invalidate(cache if is_own else other)
        late = [computations.call(cache), computations.call(cache)]
        await computations.until_running(2)
        # The later computation ends first.
        computations.allowed[1].set()
        assert await asyncio.gather(*late) == ["answer 2"] * 2
        computations.allowed[0].set()
        assert await asyncio.gather(*early) == ["answer 1"] * 2
        stored = await cache.get("q", "n")
        assert stored is not None
        assert stored.answer == "answer 2"


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("invalidate", COVERING.values(), ids=COVERING)
async def test_an_earlier_computation_is_not_stored(tmp_path: Path, invalidate: Invalidate, is_own: bool) -> None:
    computations = Computations()
    async with open_async_cache(tmp_path / "r.db", EXACT) as cache, open_async_cache(tmp_path / "r.db", EXACT) as other:
        early = computations.call(cache)
        await computations.until_running(1)
        await invalidate(cache if is_own else other)
        computations.allowed[0].set()
        assert await early == "answer 1"
        assert await cache.count() == 0


@pytest.mark.parametrize("invalidate", OTHER.values(), ids=OTHER)
async def test_other_invalidations_have_no_effect(tmp_path: Path, invalidate: Invalidate) -> None:
    computations = Computations()
    async with open_async_cache(tmp_path / "r.db", EXACT) as cache:
        early = computations.call(cache)
        await computations.until_running(1)
        await invalidate(cache)
        late = computations.call(cache)
        await asyncio.sleep(0)
        computations.allowed[0].set()
        assert (await early, await late) == ("answer 1", "answer 1")
        assert await cache.contains("q", "n")


def test_threads_compute_again(tmp_path: Path) -> None:
    started, allowed = list[str](), Future[None]()

    def compute(question: str) -> str:
        number = len(started)
        started.append(question)
        if number == 0:
            allowed.result()
        return f"answer {number}"

    with open_cache(tmp_path / "r.db", EXACT) as cache, ThreadPoolExecutor(1) as threads:
        early = threads.submit(ask, cache, compute)
        until(lambda: len(started) == 1)
        assert cache.clear() == 0
        assert ask(cache, compute) == "answer 1"
        allowed.set_result(None)
        assert early.result() == "answer 0"
        assert ask(cache, compute) == "answer 1"


def ask(cache: Cache, compute: Callable[[str], str]) -> str:
    return cache.get_or_set("q", compute)
