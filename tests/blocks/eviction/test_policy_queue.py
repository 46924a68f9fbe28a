"""The block cache under S3-FIFO and `sessions`: the cache stays valid, parents stay, and evictions equal the simulation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.eviction import make_queue
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.offline.simulate.pool_simulation import ChainRequest, simulate
from tests.blocks.driver import serve
from tests.reference.integrity import check_integrity

SIZE = 2
PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=40)


def manager(num_blocks: int, policy: str = "s3fifo") -> KVCacheManager:
    return KVCacheManager(num_blocks, SIZE, hasher=BlockHasher(seed="x"), policy=policy)


def start(cache: KVCacheManager, id: str, tokens: list[int]) -> CacheRequest | None:
    request = CacheRequest(id, tokens)
    computed = cache.get_computed_blocks(request)
    new = request.num_tokens - computed.num_tokens
    if cache.allocate_slots(request, new, computed) is None:
        return None
    request.num_computed_tokens = request.num_tokens
    return request


def assert_sound(cache: KVCacheManager) -> None:
    """Integrity, whole cached chains, and a queue with uncached blocks first."""
    check_integrity(cache)
    cached = [block for block in cache.pool.blocks if block.hash is not None]
    digests = {block.hash for block in cached}
    assert all(block.parent is None or block.parent in digests for block in cached)
    empty = [block.hash is None for block in cache.pool.free_queue]
    assert empty == sorted(empty, reverse=True), "a cached block goes before an empty one"


@pytest.mark.parametrize("policy", ["s3fifo", "sessions"])
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_chains_stay_whole(policy: str, data: st.DataObject) -> None:
    cache = manager(14, policy)
    live: list[CacheRequest] = []
    for number in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["start", "start", "decode", "fork", "end", "reset"]))
        if action == "start":
            # Prompts of whole blocks recompute their last one, which makes second copies.
            request = start(cache, str(number), data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=12)))
            live += [request] if request else []
        elif action == "reset":
            assert cache.reset_prefix_cache() == (not live)
        elif live:
            request = data.draw(st.sampled_from(live))
            if action == "decode":
                request.append(data.draw(st.integers(0, 1)))
                if cache.allocate_slots(request, 1) is None:
                    action = "end"
                else:
                    request.num_computed_tokens += 1
            if action == "fork":
                child = CacheRequest(str(number), [])
                cache.fork(request, child)
                live.append(child)
            if action == "end":
                cache.free(request)
                live.remove(request)
        expected = [block.id for block in cache.pool.free_queue]
        assert_sound(cache)
        assert [block.id for block in cache.pool.free_queue] == expected, "looking at the queue changed it"


@settings(max_examples=100, deadline=None)
@given(PATHS, st.integers(7, 15))
def test_the_pool_hits_what_the_simulation_hits(paths: list[list[int]], capacity: int) -> None:
    cache = manager(capacity + 1)
    ids: dict[tuple[int, ...], int] = {}
    requests, hits = [], 0
    for number, path in enumerate(paths):
        chain = tuple(ids.setdefault(tuple(path[: end + 1]), len(ids)) for end in range(len(path)))
        requests.append(ChainRequest(chain, len(chain), True))
        # One token more than whole blocks, so that no block is computed twice.
        serve(cache, str(number), [*(token for token in path for _ in range(SIZE)), 9])
    hits = cache.num_hit_tokens // SIZE
    assert hits == simulate(requests, capacity, "s3fifo").hits


@pytest.mark.parametrize("policy", ["s3fifo", "sessions"])
@settings(max_examples=40, deadline=None)
@given(PATHS, st.integers(1, 12))
def test_blocks_go_in_the_order_of_the_queue(policy: str, paths: list[list[int]], count: int) -> None:
    cache = manager(13, policy)
    for number, path in enumerate(paths):
        serve(cache, str(number), [token for token in path for _ in range(SIZE)])
    expected = list(cache.pool.free_queue)[:count]
    assert cache.pool.get_new_blocks(count) == expected


def test_a_hit_on_a_second_copy_counts_for_the_content() -> None:
    cache = manager(8)
    prompts = [start(cache, name, [1, 1]) for name in ("a", "b")]
    for request in prompts[::-1]:
        assert request is not None
        cache.free(request)
    oldest = cache.get_computed_blocks(CacheRequest("c", [1, 1, 5])).blocks[0]
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


def test_unknown_policies_are_named() -> None:
    with pytest.raises(ValueError, match="unknown eviction policy 'mru': use lru, s3fifo"):
        make_queue("mru", [], 1)
