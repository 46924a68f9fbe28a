"""Times of cached blocks, on a clock that the test turns."""

from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.residency import Residency


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def begin(manager: KVCacheManager, id: str, tokens: range) -> CacheRequest:
    request = CacheRequest(id, tokens)
    computed = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, request.num_tokens - computed.num_tokens, computed) is not None
    return request


def test_lifetime_idleness_and_gaps_of_cached_blocks() -> None:
    clock = Clock()
    residency = Residency(clock)
    manager = KVCacheManager(5, 4, residency=residency)
    first = begin(manager, "a", range(9))  # two blocks cached, a third holds one token
    clock.now = 10
    manager.free(first)
    clock.now = 30
    manager.free(begin(manager, "b", range(5)))  # hits the first block after 20 s idle
    found = residency.stats()
    assert (found.evicted, found.lifetime, found.reuse_gap) == (0, None, 20)
    clock.now = 100
    manager.free(begin(manager, "c", range(100, 116)))  # takes all four: two were cached
    found = residency.stats()
    assert found.evicted == 2
    assert found.lifetime == 100
    assert found.idle == (70 + 90) / 2
    assert found.never_hit == 0.5


def test_blocks_that_cache_nothing_do_not_count() -> None:
    clock = Clock()
    residency = Residency(clock)
    manager = KVCacheManager(5, 4, residency=residency)
    for number in range(3):
        manager.free(begin(manager, str(number), range(3)))
    assert residency.stats().evicted == 0


def test_a_reset_is_no_eviction() -> None:
    residency = Residency(Clock())
    manager = KVCacheManager(5, 4, residency=residency)
    manager.free(begin(manager, "a", range(9)))
    assert manager.reset_prefix_cache()
    manager.free(begin(manager, "b", range(100, 116)))
    assert residency.stats().evicted == 0
