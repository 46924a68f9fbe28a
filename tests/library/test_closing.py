"""A cache that is closed while other threads or tasks use it: their calls end."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kvproxy import Cache, CachedAnswer, CacheSettings, PolicyResult, open_async_cache, open_cache
from tests.index.doubles import HashEmbedder
from tests.library.test_own_policies import STORED, Judge
from tests.polling import until_async

EXACT = CacheSettings(semantic=False)
_NUM_THREADS = 6


def store_until_closed(cache: Cache, thread: int, has_begun: threading.Event) -> int:
    """Return the number of stored answers."""
    numbers = count()

    def store() -> None:
        for number in numbers:
            cache.set(f"question {thread} {number}", "a")
            has_begun.set()

    with pytest.raises(RuntimeError, match="closed"):
        store()
    return next(numbers) - 1


def test_calls_of_other_threads_end_when_the_cache_is_closed(tmp_path: Path) -> None:
    num_stored = 0
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        for _ in range(4):
            cache, begun = open_cache(tmp_path / "r.db", EXACT), [threading.Event() for _ in range(_NUM_THREADS)]
            calls = [pool.submit(store_until_closed, cache, place, each) for place, each in enumerate(begun)]
            assert all(each.wait(20) for each in begun)
            cache.close()
            assert not wait_for(calls, 20).not_done
            num_stored = max(num_stored, sum(call.result() for call in calls))
    with open_cache(tmp_path / "r.db", EXACT) as cache:
        assert len(cache) >= num_stored


def test_an_answer_computed_while_the_cache_is_closed_is_returned(tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "r.db", EXACT)
    has_begun, may_end = threading.Event(), threading.Event()

    def compute(question: str) -> str:
        has_begun.set()
        may_end.wait(20)
        return "paid"

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(cache.get_or_set, "q", compute)
        assert has_begun.wait(20)
        cache.close()
        may_end.set()
        assert answer.result(20) == "paid"
    with pytest.raises(RuntimeError, match="closed"):
        cache.get("q")


class SlowJudge(Judge):
    """Decides when it may."""

    def __init__(self) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def decide(self, *arguments: Any, **options: Any) -> PolicyResult:
        self.has_begun.set()
        assert self.may_end.wait(60)
        return super().decide(*arguments, **options)


async def compute(question: str) -> str:
    return f"computed {question[-1]}"


@pytest.mark.parametrize("seconds", [60.0, 0.0])
async def test_calls_end_when_a_cache_for_asyncio_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr("kvproxy.library.async_cache._CLOSING_SECONDS", seconds)
    judge, shut_down = SlowJudge(), ThreadPoolExecutor.shutdown

    def end_judge_at_shutdown(pool: ThreadPoolExecutor, wait: bool = True, *, cancel_futures: bool = False) -> None:
        shut_down(pool, wait=False, cancel_futures=cancel_futures)
        judge.may_end.set()
        shut_down(pool, wait=wait)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", end_judge_at_shutdown)
    cache = open_async_cache(tmp_path / "r.db", policy=judge, embedder=HashEmbedder(), lookup_threads=1)
    await cache.set(STORED, "so")
    calls = [
        asyncio.create_task(cache.get(f"{STORED} 1")),
        asyncio.create_task(cache.get(f"{STORED} 2")),
        asyncio.create_task(cache.get_or_set(f"{STORED} 3", compute)),
        asyncio.create_task(cache.get_or_set(f"{STORED} 3", compute)),
    ]
    assert await asyncio.to_thread(judge.has_begun.wait, 60)
    closing = asyncio.create_task(cache.close())
    await until_async(lambda: "closed" in repr(cache))
    if seconds:
        judge.may_end.set()
    await closing
    first, second, *computed = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(first, CachedAnswer)
    if seconds:
        assert isinstance(second, CachedAnswer)
        assert computed == ["so", "so"]
    else:
        assert isinstance(second, RuntimeError)
        assert "closed" in str(second)
        assert computed == ["computed 3", "computed 3"]
    with pytest.raises(RuntimeError, match="closed"):
        await cache.get(STORED)
