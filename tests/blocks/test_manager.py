"""Rules of the block cache that are easier to read as examples than as a model."""

import pytest

from kvproxy.blocks.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.request import CacheRequest
from kvproxy.blocks.view import all_blocks, chains, match
from kvproxy.blocks.view import rows as row_list


def run(manager: KVCacheManager, id: str, tokens: list[int], **options: object) -> CacheRequest:
    request = CacheRequest(id, tokens, **options)  # type: ignore[arg-type]
    computed = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, len(tokens) - computed.num_tokens, computed) is not None
    request.num_computed_tokens = len(tokens)
    return request


def test_a_prompt_of_whole_blocks_recomputes_its_last_one() -> None:
    manager = KVCacheManager(10, 4)
    manager.free(run(manager, "a", list(range(8))))
    assert manager.get_computed_blocks(CacheRequest("b", range(8))).num_tokens == 4
    assert manager.get_computed_blocks(CacheRequest("c", range(9))).num_tokens == 8


def test_refused_allocation_changes_nothing() -> None:
    manager = KVCacheManager(4, 4)
    run(manager, "a", list(range(8)))
    before = row_list(all_blocks(manager))
    request = CacheRequest("b", range(100, 108))
    assert manager.allocate_slots(request, 8, manager.get_computed_blocks(request)) is None
    assert row_list(all_blocks(manager)) == before
    assert manager.lookups.queries == 8


def test_skip_read_still_writes() -> None:
    manager = KVCacheManager(10, 4)
    manager.free(run(manager, "a", list(range(9)), skip_read=True))
    assert manager.lookups.queries == 0
    assert manager.get_computed_blocks(CacheRequest("b", range(9), skip_read=True)).num_tokens == 0
    assert manager.get_computed_blocks(CacheRequest("c", range(9))).num_tokens == 8


def test_delayed_caching_hides_blocks_until_they_are_loaded() -> None:
    manager = KVCacheManager(10, 4)
    request = CacheRequest("a", range(8))
    manager.allocate_slots(request, 8, manager.get_computed_blocks(request), delay_caching=True)
    assert manager.get_computed_blocks(CacheRequest("b", range(9))).num_tokens == 0
    manager.cache_blocks(request, 8)
    assert manager.get_computed_blocks(CacheRequest("c", range(9))).num_tokens == 8


def test_merging_gives_up_the_younger_copy() -> None:
    for merge, blocks in ((False, 4), (True, 2)):
        manager = KVCacheManager(10, 4, merge=merge)
        first, second = CacheRequest("a", range(8)), CacheRequest("b", range(8))
        nothing = [manager.get_computed_blocks(request) for request in (first, second)]
        for request, computed in zip((first, second), nothing, strict=True):
            manager.allocate_slots(request, 8, computed)
        assert manager.stats().used == blocks
        manager.check_integrity()


def test_events_tell_what_is_cached() -> None:
    manager = KVCacheManager(4, 4, record_events=True)
    manager.free(run(manager, "a", list(range(8))))
    manager.free(run(manager, "b", list(range(100, 112))))
    events = manager.take_events()
    assert [len(event.hashes) for event in events if isinstance(event, BlockStored)] == [2, 3]
    assert sum(isinstance(event, BlockRemoved) for event in events) == 2
    assert manager.take_events() == []
    assert manager.reset_prefix_cache()
    assert manager.take_events() == [AllBlocksCleared()]


def test_divergence_names_the_first_token_that_differs() -> None:
    manager = KVCacheManager(20, 4, keep_tokens=True)
    manager.free(run(manager, "a", list(range(12))))
    found = match(manager, CacheRequest("b", [0, 1, 2, 3, 4, 5, 99, 98, 97]))
    assert found.matched_tokens == 4
    assert found.divergence is not None
    assert (found.divergence.position, found.divergence.cached, found.divergence.prompt) == (6, (6, 7), (99, 98))
    (chain,) = chains(manager)
    assert chain.num_blocks == 3


@pytest.mark.parametrize("blocks", [0, 1])
def test_a_pool_needs_more_than_the_null_block(blocks: int) -> None:
    with pytest.raises(ValueError, match="2 or more"):
        KVCacheManager(blocks, 4)
