"""Rules of the block cache as examples, and forks with random operations."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.cache_request import CacheRequest, MMItem
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.doors import EVICTION
from tests.blocks.driver import begin, decode, hit_tokens, serve
from tests.reference.integrity import check_integrity


def fork(manager: KVCacheManager, parent: CacheRequest, id: str) -> CacheRequest:
    child = CacheRequest(id, [])
    manager.fork(parent, child)
    return child


def test_a_request_that_skips_reads_is_cached() -> None:
    manager = KVCacheManager(10, 4)
    serve(manager, "a", range(9), skip_read=True)
    assert manager.num_queried_tokens == 0
    assert (hit_tokens(manager, range(9), skip_read=True), hit_tokens(manager, range(9))) == (0, 8)


def test_delayed_blocks_are_cached_once_they_are_loaded() -> None:
    manager = KVCacheManager(10, 4)
    request = CacheRequest("a", range(8))
    manager.allocate_slots(request, 8, manager.get_computed_blocks(request), delay_cache_blocks=True)
    assert hit_tokens(manager, range(9)) == 0
    manager.cache_blocks(request, 8)
    assert hit_tokens(manager, range(9)) == 8


@pytest.mark.parametrize("blocks", [0, 1])
def test_a_pool_needs_more_than_the_null_block(blocks: int) -> None:
    with pytest.raises(ValueError, match="2 or more"):
        KVCacheManager(blocks, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KVCacheManager("a"), "num_blocks must be an integer, not str"),
        (lambda: KVCacheManager(10.5), "num_blocks must be an integer, not float"),
        (lambda: KVCacheManager(10, "4"), "block_size must be an integer, not str"),
        (lambda: KVCacheManager(10, alignment_tokens="a"), "alignment_tokens must be an integer, not str"),
        (lambda: CacheRequest("a", None), "tokens must be a sequence of integers, not NoneType"),
    ],
)
def test_arguments_of_wrong_types_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}$"):
        make()


def test_the_eviction_order_begins_with_the_next_block_to_allocate() -> None:
    manager = KVCacheManager(6, 4)
    serve(manager, "a", range(8))
    serve(manager, "b", range(20, 28))
    order = manager.eviction_order()
    assert sorted(order) == [1, 2, 3, 4, 5]
    begin(manager, "c", range(40, 57))
    assert manager.get_block_ids("c") == (order,)
    assert (manager.eviction_order(), manager.get_block_ids("unknown")) == ([], ([],))


def test_stats_of_the_pool_and_of_lookups() -> None:
    manager = KVCacheManager(10, 4)
    stats = manager.stats()
    assert (stats.queries, stats.hits, stats.hit_rate, stats.usage, stats.evictions) == (0, 0, 0.0, 0.0, 0)
    assert (stats.num_blocks, stats.free, stats.cached, stats.used) == (10, 9, 0, 0)
    serve(manager, "a", range(9))
    second = begin(manager, "b", range(11))
    stats = manager.stats()
    assert (stats.queries, stats.hits, stats.hit_rate) == (20, 8, 0.4)
    assert (stats.used, stats.free, stats.cached) == (3, 6, 0)
    assert stats.usage == pytest.approx(3 / 9)
    manager.free(second)
    assert manager.stats().cached == 2


def test_a_child_inherits_what_names_its_parents_blocks() -> None:
    """The prompt is shorter than a block, so the child hashes its first block itself."""
    manager = KVCacheManager(20, 4)
    keys: dict[str, Any] = {"cache_salt": "tenant", "lora": ("l", "/l"), "mm": [MMItem("cat", 0, 1)]}
    child = fork(manager, begin(manager, "a", range(2), **keys), "b")
    decode(manager, child, (8, 9, 10))
    assert hit_tokens(manager, [0, 1, 8, 9, 10]) == 0
    assert hit_tokens(manager, [0, 1, 8, 9, 10], **keys) == 4


@pytest.mark.parametrize("policy", EVICTION.names())
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_each_block_table_has_the_tokens_of_its_request(policy: str, data: st.DataObject) -> None:
    """Also after hits, evictions, forks, and copies."""
    manager = KVCacheManager(14, 3, policy=policy)
    memory: dict[int, dict[int, int]] = {block: {} for block in range(14)}
    live: list[CacheRequest] = []

    def allocate(request: CacheRequest, count: int, **options: Any) -> None:
        if manager.allocate_slots(request, count, **options) is None:
            manager.free(request)
            return
        start = request.num_computed_tokens = request.num_tokens - count
        copies = [(destination, dict(memory[source])) for source, destination in manager.take_copies()]
        memory.update(copies)
        for position in range(start, start + count):
            memory[manager.get_block_ids(request.id)[0][position // 3]][position % 3] = request.tokens[position]
        request.num_computed_tokens += count
        live.append(request)

    for number in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["start", "start", "decode", "decode", "fork", "end", "reset"]))
        if action == "reset":
            assert manager.reset_prefix_cache() == (not live)
        elif action == "start" or not live:
            request = CacheRequest(str(number), data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=12)))
            computed = manager.get_computed_blocks(request)
            allocate(request, request.num_tokens - computed.num_tokens, computed=computed)
        elif action == "fork":
            live.append(fork(manager, data.draw(st.sampled_from(live)), str(number)))
        else:
            request = live.pop(data.draw(st.integers(0, len(live) - 1)))
            if action == "end":
                manager.free(request)
            else:
                request.append(data.draw(st.integers(0, 1)))
                allocate(request, 1)
        order = list(manager.pool.free_queue)
        check_integrity(manager)
        is_cached = [block.hash is not None for block in manager.pool.free_queue]
        assert list(manager.pool.free_queue) == order, "looking at the queue changed it"
        assert is_cached == sorted(is_cached), "a cached block goes before an empty one"
        hashes = {block.hash for block in manager.pool.blocks}
        if policy != "lru":
            assert all(block.parent is None or block.parent in hashes for block in manager.pool.blocks)
        for each in live:
            (table,) = manager.get_block_ids(each.id)
            stored = [memory[table[position // 3]][position % 3] for position in range(each.num_computed_tokens)]
            assert stored == each.tokens


def test_all_sources_can_be_read_before_the_first_copy() -> None:
    manager = KVCacheManager(20, 4)
    first = begin(manager, "a", range(6))
    source = manager.get_block_ids("a")[0][-1]
    second = fork(manager, first, "b")
    decode(manager, second, [7])
    decode(manager, fork(manager, second, "c"), [8])
    assert manager.take_copies() == [(source, manager.get_block_ids(id)[0][-1]) for id in "bc"]
    assert manager.take_copies() == []


def test_computed_blocks_that_are_no_longer_cached_are_refused() -> None:
    manager, other = KVCacheManager(6, 4), KVCacheManager(6, 4)
    for each in (manager, other):
        serve(each, "a", range(9))
    request = CacheRequest("b", range(9))
    stale, foreign = manager.get_computed_blocks(request), other.get_computed_blocks(request)
    unlike = CacheRequest("c", range(50, 59))
    for computed in (stale, foreign):
        serve(manager, "d", range(100, 120))
        before = manager.stats()
        for wrong in (request, unlike):
            manager.get_computed_blocks(wrong)
            with pytest.raises(ValueError, match="are not its cached prefix: call get_computed_blocks"):
                manager.allocate_slots(wrong, 9 - computed.num_tokens, computed)
        assert manager.stats() == before
    serve(manager, "a", range(9))
    with pytest.raises(ValueError, match="are not its cached prefix"):
        manager.allocate_slots(request, 1, foreign)
    assert manager.allocate_slots(request, 1, manager.get_computed_blocks(request)) is not None


def test_a_preempted_request_is_admitted_again_like_a_new_one() -> None:
    manager = KVCacheManager(20, 4)
    request = begin(manager, "a", range(12))
    manager.free(request)
    computed = manager.get_computed_blocks(request)
    new = manager.allocate_slots(request, 12 - computed.num_tokens, computed)
    assert (computed.num_tokens, new and len(new), len(manager.get_block_ids("a")[0])) == (8, 1, 3)
    # vLLM counts a request once.
    assert (manager.stats().queries, manager.stats().hits) == (12, 0)
    check_integrity(manager)


def test_the_id_of_a_live_request_is_refused() -> None:
    manager = KVCacheManager(20, 4)
    request = CacheRequest("a", range(9))
    # A request without a lookup is live too.
    assert manager.allocate_slots(request, 9) is not None
    again = CacheRequest("a", range(9))
    with pytest.raises(ValueError, match="'a' is live"):
        manager.allocate_slots(again, 1, manager.get_computed_blocks(again))
    with pytest.raises(ValueError, match="'a' is live"):
        manager.allocate_slots(again, 1)
    with pytest.raises(ValueError, match="'a' is live"):
        manager.fork(request, again)
    with pytest.raises(ValueError, match="'x' holds no blocks"):
        manager.fork(CacheRequest("x", range(3)), CacheRequest("y", []))
    child = fork(manager, request, "b")
    assert manager.requests == {"a": request, "b": child}
    manager.free(request)
    manager.free(child)
    assert manager.requests == {}
    begin(manager, "a", range(9))
    check_integrity(manager)
