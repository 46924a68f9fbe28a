"""Tables of live requests: how they begin, what leaves them, and what they share."""

import pytest

from kvproxy.blocks.groups import GroupSpec
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.request import CacheRequest

WINDOW = [GroupSpec("sliding_window", 4, 5)]


def grown(manager: KVCacheManager, id: str, tokens: int, step: int) -> CacheRequest:
    """A request that computes its prompt `step` tokens at a time."""
    request = CacheRequest(id, range(tokens))
    computed = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, step, computed) is not None
    request.num_computed_tokens = step
    while request.num_computed_tokens < tokens:
        assert manager.allocate_slots(request, step) is not None
        request.num_computed_tokens += step
    return request


@pytest.mark.parametrize("step", [4, 8, 12, 24])
def test_every_block_that_leaves_a_window_is_released_at_once(step: int) -> None:
    manager = KVCacheManager(30, groups=WINDOW)
    grown(manager, "a", 48, step)
    # What the last step computed is held, and before it the window of four tokens.
    assert manager.stats().used == step // 4 + (step < 48)
    manager.check_integrity()


def test_a_request_that_begins_without_a_lookup_is_live() -> None:
    manager = KVCacheManager(10, 4)
    request = CacheRequest("a", range(6))
    assert manager.allocate_slots(request, 6) is not None
    assert manager.requests == {"a": request}
    request.num_computed_tokens = 6
    child = CacheRequest("b", ())
    manager.fork(request, child)
    assert manager.requests == {"a": request, "b": child}
    with pytest.raises(ValueError, match="'a' is live"):
        manager.allocate_slots(CacheRequest("a", range(6)), 6, manager.get_computed_blocks(CacheRequest("x", range(6))))
    for each in (request, child):
        manager.free(each)
    assert manager.requests == {}
    assert manager.reset_prefix_cache()


def test_common_prefix_blocks_are_those_that_every_live_request_holds() -> None:
    manager = KVCacheManager(40, groups=[GroupSpec("full", 4), GroupSpec("sliding_window", 4, 9)])
    first = grown(manager, "a", 21, 21)
    assert manager.num_common_prefix_blocks("a") == [6, 0]
    second = CacheRequest("b", [*range(13), *range(50, 60)])
    computed = manager.get_computed_blocks(second)
    assert computed.num_tokens == 12
    manager.allocate_slots(second, 11, computed)
    assert manager.num_common_prefix_blocks("a") == [3, 0]
    assert manager.num_common_prefix_blocks("b") == [3, 0]
    assert manager.num_common_prefix_blocks("nobody") == [0, 0]
    third = grown(manager, "c", 3, 3)
    assert manager.num_common_prefix_blocks("a") == [0, 0]
    for each in (first, third):
        manager.free(each)
    assert manager.num_common_prefix_blocks("b")[0] == 6
