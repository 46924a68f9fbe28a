"""Pinned chains are not evicted, and nothing else about the cache changes."""

import random

import pytest

from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.pins import PinLimitExceeded, Pins
from tests.blocks.driver import Clock, begin, hit_tokens, serve
from tests.reference.integrity import check_integrity


def churn(manager: KVCacheManager, pins: Pins) -> None:
    rng = random.Random(0)
    for number in range(30):
        manager.free(begin(manager, f"r{number}", [rng.randrange(100, 10_000) for _ in range(20)]))
        check_integrity(manager, pins)


def test_a_pin_protects_its_blocks_until_it_is_removed() -> None:
    manager = KVCacheManager(20, 4)
    pins = Pins(manager)
    serve(manager, "fill", range(17))
    assert pins.pin("system prompt", CacheRequest("p", range(17))) == 16
    churn(manager, pins)
    assert hit_tokens(manager, range(17)) == 16
    assert (manager.stats().pinned, manager.stats().used) == (4, 0)
    assert not manager.reset_prefix_cache()
    assert pins.unpin("system prompt")
    assert not pins.unpin("system prompt")
    churn(manager, pins)
    assert hit_tokens(manager, range(17)) == 0
    assert manager.reset_prefix_cache()


def test_a_pin_expires() -> None:
    manager, clock = KVCacheManager(20, 4), Clock()
    pins = Pins(manager, clock)
    serve(manager, "fill", range(9))
    pins.pin("short", CacheRequest("p", range(9)), ttl=10.0)
    clock.now = 9.9
    assert pins.expire() == 0
    clock.now = 10.0
    assert pins.expire() == 1
    assert (len(pins.list()), manager.stats().pinned) == (0, 0)
    check_integrity(manager, pins)


def test_pinning_again_renews_and_two_pins_share_blocks() -> None:
    manager = KVCacheManager(20, 4)
    pins = Pins(manager)
    serve(manager, "fill", range(9))
    for _ in range(3):
        pins.pin("a", CacheRequest("p", range(9)))
    pins.pin("b", CacheRequest("p", range(5)))
    check_integrity(manager, pins)
    pins.unpin("a")
    assert manager.stats().pinned == 1
    pins.unpin("b")
    assert manager.stats().pinned == 0


def test_the_limit_counts_shared_blocks_once() -> None:
    manager = KVCacheManager(20, 4)
    pins = Pins(manager, Clock(), max_blocks=4)
    serve(manager, "fill", range(17))
    serve(manager, "fill", range(100, 109))
    assert pins.pin("a", CacheRequest("p", range(13))) == 12
    assert pins.pin("b", CacheRequest("p", range(17)), ttl=5.0) == 16
    with pytest.raises(PinLimitExceeded, match="would hold 6 blocks; the limit is 4"):
        pins.pin("c", CacheRequest("p", range(100, 109)))
    assert [(row.name, len(row.blocks), row.seconds_left) for row in pins.list()] == [("a", 3, None), ("b", 4, 5.0)]
    # A pin that replaces itself holds no more than before.
    assert pins.pin("b", CacheRequest("p", range(17))) == 16
    assert pins.pin("b", CacheRequest("p", range(50))) == 16
    assert pins.pin("a", CacheRequest("p", range(1000, 1009))) == 0
    assert [row.name for row in pins.list()] == ["b"]
    pins.clear()
    assert (len(pins.list()), manager.stats().pinned) == (0, 0)
