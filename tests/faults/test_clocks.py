"""Clocks that are set: nothing is served beyond its time. `tests/index/store/test_eviction.py` compares a store with a model."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from kvproxy.clients.quotas import TokenBucket
from kvproxy.providers.cache_policy import PauseTimes
from kvproxy.settings import load_settings
from kvproxy.tiers.local_stores import DiskStore
from tests.faults.proxies import ask, hit, stored
from tests.flow.test_bounds import Warmed
from tests.plain_upstream import run_plain_upstream
from tests.polling import until_async
from tests.servers import run_proxy

_DAY = 86_400.0


def test_what_was_stored_before_the_clock_was_set_back_is_computed_anew(tmp_path: Path) -> None:
    with run_plain_upstream() as upstream:
        settings_ = load_settings(data=tmp_path, upstream=upstream, cache={"semantic": False, "ttl": 1000.0})
        now = [1.7e9]
        with run_proxy(settings_, clock=lambda: now[0]) as (url, services):
            store = services.cache.store
            assert stored(ask(url, "one"))
            assert hit(ask(url, "one"))
            for jump in (-3600.0, 7200.0, -3600.0, 400 * _DAY, -400 * _DAY):
                now[0] += jump
                assert stored(ask(url, "one")), f"served after a jump of {jump}"
                assert hit(ask(url, "one"))
                services.cache.maintain()
                assert store.count() == 1


def test_chunks_of_the_future_are_found_and_are_evicted_like_others(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 300)
    for number in range(3):
        store.put(f"key-{number}", bytes(100))
    for path in tmp_path.rglob("*-1.chunk"):
        os.utime(path, (4e9, 4e9))
    again = DiskStore(tmp_path, 300)
    assert all(again.contains(f"key-{number}") for number in range(3))
    again.put("key-3", bytes(100))
    assert again.stats().chunks == 3
    assert again.stats().bytes == 300
    assert again.contains("key-3")


@pytest.mark.parametrize("jump", [365 * _DAY, -365 * _DAY])
def test_a_clock_that_is_set_gives_and_takes_no_quota(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    bucket = TokenBucket(60)
    bucket.take(60)
    monkeypatch.setattr("time.time", lambda: 1.8e9 + jump)
    assert bucket.available_units < 30
    assert 30 < bucket.seconds_until_available(60) <= 60


@pytest.mark.parametrize(("jump", "most"), [(365 * _DAY, 0), (-3600.0, 3)])
async def test_a_clock_that_is_set_sends_no_more_keep_warm_requests(jump: float, most: int) -> None:
    warm, sent = Warmed(), 0
    keep_warm = warm.keep_warm
    keep_warm.interval, keep_warm.pauses = 0.02, PauseTimes(())
    for pause in (10.0, 900.0):
        keep_warm.pauses.add(pause)

    async def send(session: Any) -> None:
        nonlocal sent
        sent += 1
        session.used = warm.now

    keep_warm._send = send  # type: ignore[method-assign]
    await warm.finish("a paused session")
    # The clock is set during the pause.
    await asyncio.sleep(0)
    warm.now += jump
    if most:
        await until_async(lambda: sent == most)
        await asyncio.sleep(0.2)
        assert len(keep_warm._sessions) == 1
    else:
        # Its prefix has expired.
        await until_async(lambda: not keep_warm._sessions)
    assert sent == most
    await keep_warm.close()
