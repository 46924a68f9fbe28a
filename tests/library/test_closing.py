"""A cache that is closed while other threads use it: their calls end."""

import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from itertools import count
from pathlib import Path

import pytest

from kvproxy.library import Cache, open_cache
from kvproxy.settings.cache import CacheSettings

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
