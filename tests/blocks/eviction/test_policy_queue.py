"""The block cache under S3-FIFO and `sessions`: the cache stays valid, parents stay, and evictions equal the simulation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.eviction.s3fifo import S3FIFO
from kvproxy.blocks.manager import KVCacheManager
from tests.blocks.driver import begin, serve
from tests.reference.integrity import check_integrity

SIZE = 2
PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=40)


def manager(num_blocks: int, policy: str = "s3fifo") -> KVCacheManager:
    return KVCacheManager(num_blocks, SIZE, hasher=BlockHasher(seed="x"), policy=policy)


@pytest.mark.parametrize("policy", ["s3fifo", "sessions"])
@settings(max_examples=25, deadline=None)
@given(PATHS, st.integers(1, 12))
def test_blocks_go_in_the_order_of_the_queue(policy: str, paths: list[list[int]], count: int) -> None:
    cache = manager(13, policy)
    for number, path in enumerate(paths):
        serve(cache, str(number), [token for token in path for _ in range(SIZE)])
    expected = list(cache.pool.free_queue)[:count]
    assert cache.pool.get_new_blocks(count) == expected


def test_a_hit_on_a_second_copy_counts_for_the_content() -> None:
    cache = manager(8)
    for request in [begin(cache, name, [1, 1]) for name in ("b", "a")][::-1]:
        cache.free(request)
    oldest = cache.get_computed_blocks(CacheRequest("c", [1, 1, 5])).groups[0][0]
    assert list(cache.pool.free_queue)[-2:][0] is oldest, "the copy freed last is the spare one"
    cache.pool.touch([oldest])
    assert oldest not in list(cache.pool.free_queue)
    assert cache.pool.num_free_blocks == 6
    cache.pool.free_blocks([oldest])
    check_integrity(cache)


def test_a_reset_leaves_nothing_of_the_policy_behind() -> None:
    cache = manager(5)
    for number in range(6):
        serve(cache, str(number), [1, 1, 5])
    assert cache.reset_prefix_cache()
    assert {block.hash for block in cache.pool.free_queue} == {None}
    for number, tokens in enumerate(([1, 1, 5], [2, 2, 5], [2, 2, 5])):
        serve(cache, f"later {number}", tokens)
    victims = [block.hash for block in cache.pool.free_queue if block.hash is not None]
    assert victims[0] == cache.hasher.hash_blocks([1, 1], SIZE)[0], "earlier uses still count"


def test_s3fifo_evicts_keys_that_were_used_once_and_remembers_them() -> None:
    policy = S3FIFO[int](10)
    for key in range(10):
        policy.add(key)
    # A key in use is not evicted; later, it has been used twice.
    policy.remove(0)
    assert [policy.pop() for _ in range(8)] == [1, 2, 3, 4, 5, 6, 7, 8]
    policy.add(0)
    # A key that returns soon after its eviction outlives new keys.
    for key in (8, 10, 11, 12):
        policy.add(key)
    assert [policy.pop() for _ in range(6)] == [9, 10, 11, 8, 0, 12]
    with pytest.raises(LookupError):
        policy.pop()


def test_a_restored_key_of_s3fifo_is_idle_again_behind_the_others() -> None:
    policy = S3FIFO[str](3)
    for key in "abc":
        policy.add(key)
    assert policy.pop() == "a"
    policy.restore("a")
    assert [policy.pop() for _ in range(3)] == ["b", "c", "a"]


def test_unknown_policies_are_named() -> None:
    with pytest.raises(ValueError, match="unknown eviction policy 'mru': use lru, s3fifo"):
        manager(9, "mru")
