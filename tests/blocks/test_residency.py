"""Residency statistics with a manual clock."""

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.residency import ResidencyTracker
from tests.blocks.driver import Clock, begin, serve


def test_lifetime_idle_time_and_reuse_gap_of_cached_blocks() -> None:
    clock = Clock()
    residency = ResidencyTracker(clock)
    manager = KVCacheManager(5, 4, residency=residency)
    first = begin(manager, "a", range(9))  # two blocks cached, a third holds one token
    clock.now = 10
    manager.free(first)
    clock.now = 30
    serve(manager, "b", range(5))  # hits the first block after 20 s idle
    found = residency.stats()
    assert (found.evicted, found.lifetime, found.reuse_gap) == (0, None, 20)
    clock.now = 100
    serve(manager, "c", range(100, 116))  # takes all four blocks, of which two were cached
    found = residency.stats()
    assert (found.evicted, found.lifetime, found.idle, found.never_hit) == (2, 100, (70 + 90) / 2, 0.5)


def test_uncached_blocks_and_resets_are_not_evictions() -> None:
    residency = ResidencyTracker(Clock())
    manager = KVCacheManager(5, 4, residency=residency)
    for number in range(3):
        serve(manager, str(number), range(3))
    serve(manager, "a", range(9))
    assert manager.reset_prefix_cache()
    serve(manager, "b", range(100, 116))
    assert residency.stats().evicted == 0
