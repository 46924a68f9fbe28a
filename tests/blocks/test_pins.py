"""Pinned chains outlive any pressure, and nothing else about the cache changes."""

import random

import pytest

from kvproxy.blocks.integrity import check_integrity
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import Pins, PinsFull
from kvproxy.blocks.request import CacheRequest


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def churn(manager: KVCacheManager, pins: Pins, rounds: int) -> None:
    chance = random.Random(0)
    for number in range(rounds):
        request = CacheRequest(f"r{number}", [chance.randrange(100, 10_000) for _ in range(20)])
        computed = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, 20 - computed.num_tokens, computed) is not None
        manager.free(request)
        check_integrity(manager.pool, manager.groups, pins.held())


def cached(manager: KVCacheManager, tokens: range) -> int:
    return manager.get_computed_blocks(CacheRequest("probe", tokens)).num_tokens


def fill(manager: KVCacheManager, tokens: range) -> None:
    request = CacheRequest("fill", tokens)
    manager.allocate_slots(request, len(tokens), manager.get_computed_blocks(request))
    manager.free(request)


def test_a_pin_outlives_pressure_until_it_is_taken_back() -> None:
    manager, clock = KVCacheManager(20, 4), Clock()
    pins = Pins(manager, clock)
    fill(manager, range(17))
    assert pins.pin("system prompt", CacheRequest("p", range(17))) == 16
    churn(manager, pins, 30)
    assert cached(manager, range(17)) == 16
    assert manager.stats().used == 4
    assert not manager.reset_prefix_cache()
    assert pins.unpin("system prompt")
    assert not pins.unpin("system prompt")
    churn(manager, pins, 30)
    assert cached(manager, range(17)) == 0
    assert manager.reset_prefix_cache()


def test_a_pin_ends_with_its_time() -> None:
    manager, clock = KVCacheManager(20, 4), Clock()
    pins = Pins(manager, clock)
    fill(manager, range(9))
    pins.pin("short", CacheRequest("p", range(9)), ttl=10.0)
    clock.now = 9.9
    assert pins.expire() == 0
    clock.now = 10.0
    assert pins.expire() == 1
    assert (len(pins), manager.stats().used) == (0, 0)
    check_integrity(manager.pool, manager.groups, pins.held())


def test_pinning_again_renews_and_two_pins_share() -> None:
    manager, clock = KVCacheManager(20, 4), Clock()
    pins = Pins(manager, clock)
    fill(manager, range(9))
    for _ in range(3):
        pins.pin("a", CacheRequest("p", range(9)))
    pins.pin("b", CacheRequest("p", range(5)))
    check_integrity(manager.pool, manager.groups, pins.held())
    pins.unpin("a")
    assert manager.stats().used == 1
    pins.unpin("b")
    assert manager.stats().used == 0


def test_blocks_of_several_pins_count_once_among_those_that_may_be_held() -> None:
    manager, clock = KVCacheManager(20, 4), Clock()
    pins = Pins(manager, clock, max_blocks=4)
    fill(manager, range(17))
    fill(manager, range(100, 109))
    assert pins.pin("a", CacheRequest("p", range(13))) == 12
    assert pins.pin("b", CacheRequest("p", range(17)), ttl=5.0) == 16
    with pytest.raises(PinsFull, match="would hold 6 blocks where they may hold 4"):
        pins.pin("c", CacheRequest("p", range(100, 109)))
    assert [(row.name, len(row.blocks), row.seconds_left) for row in pins.list()] == [("a", 3, None), ("b", 4, 5.0)]
    # A pin that takes its own place holds no more than before.
    assert pins.pin("b", CacheRequest("p", range(17))) == 16
    assert pins.pin("b", CacheRequest("p", range(50))) == 16
    assert pins.pin("a", CacheRequest("p", range(1000, 1009))) == 0
    assert [row.name for row in pins.list()] == ["b"]
    assert pins.held() == dict.fromkeys(pins.list()[0].blocks, 1)
    pins.clear()
    assert (len(pins), manager.stats().used) == (0, 0)
