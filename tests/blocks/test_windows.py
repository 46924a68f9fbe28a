"""Sliding windows, chunked attention, and hybrid models."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.blocks.single_type_manager import GroupSpec
from tests.blocks.driver import begin, hit_tokens, serve

KINDS = st.sampled_from(
    [
        GroupSpec("full", 2),
        GroupSpec("sliding_window", 2, 5),
        GroupSpec("sliding_window", 4, 6),
        GroupSpec("chunked_local", 2, 8),
        GroupSpec("full", 4),
        GroupSpec("sliding_window", 2, 1),
    ]
)


def usable(spec: GroupSpec, cached: Sequence[bool], blocks: int) -> bool:
    """Return whether the blocks that the next token attends to are cached."""
    if spec.kind == "full":
        first = 0
    elif spec.kind == "sliding_window":
        first = max(0, blocks - max(1, -(-(spec.window - 1) // spec.block_size)))
    else:
        first = blocks * spec.block_size // spec.window * spec.window // spec.block_size
    return all(cached[first:blocks])


def cache_some(manager: KVCacheManager, request: CacheRequest, kept: list[list[bool]]) -> list[list[bool]]:
    """Cache the request, then evict blocks; return for each block of each group whether it is cached."""
    manager.allocate_slots(request, request.num_tokens, manager.get_computed_blocks(request))
    tables = [list(group.tables[request.id]) for group in manager.groups]
    manager.free(request)
    for table, keep in zip(tables, kept, strict=True):
        manager.evict_blocks([block.id for block, stays in zip(table, keep, strict=True) if not stays])
    return [[block.hash is not None for block in table] for table in tables]


@settings(deadline=None, max_examples=60)
@given(st.lists(KINDS, min_size=1, max_size=3), st.integers(1, 12), st.data())
def test_a_hit_is_the_longest_prefix_that_every_group_can_use(
    specs: list[GroupSpec], fours: int, data: st.DataObject
) -> None:
    manager = KVCacheManager(200, groups=specs)
    ordered = [group.spec for group in manager.groups]
    tokens = list(range(fours * 4))
    kept = [
        data.draw(
            st.lists(st.booleans(), min_size=len(tokens) // spec.block_size, max_size=len(tokens) // spec.block_size)
        )
        for spec in ordered
    ]
    step = max(spec.block_size for spec in ordered)
    kept = cache_some(manager, CacheRequest("a", tokens, skip_read=True), kept)
    limit = (len(tokens) - 1) // step * step
    best = next(
        length
        for length in range(limit, -1, -step)
        if all(usable(spec, keep, length // spec.block_size) for spec, keep in zip(ordered, kept, strict=True))
    )
    found = manager.get_computed_blocks(CacheRequest("b", tokens))
    assert found.num_tokens == best
    for spec, blocks in zip(ordered, found.groups, strict=True):
        assert len(blocks) == best // spec.block_size


def hybrid(retention_interval: int | None, num_blocks: int = 200) -> KVCacheManager:
    return KVCacheManager(
        num_blocks, groups=[GroupSpec("sliding_window", 4, 9, retention_interval), GroupSpec("full", 4)]
    )


@pytest.mark.parametrize("length", range(1, 40))
def test_the_last_window_serves_the_same_prompt_and_longer_ones(length: int) -> None:
    manager, prompt = hybrid(0), list(range(length))
    assert serve(manager, "a", prompt) == 0
    whole = (length - 1) // 4 * 4
    assert hit_tokens(manager, prompt) == whole
    # The last block of a prompt of full blocks is always recomputed, so it is not cached.
    assert hit_tokens(manager, [*prompt, *range(50)]) == whole
    kept = [block for block in manager.pool.blocks if block.hash is not None and block.group == 0]
    assert len(kept) == min(2, whole // 4)


def test_windows_of_answers_are_cached_only_if_all_are() -> None:
    prompt = list(range(30))
    answered = [*prompt, *range(20), 99]
    found = {}
    for interval in (None, 16, 0):
        manager = hybrid(interval)
        serve(manager, "a", prompt, answer=range(20))
        found[interval] = hit_tokens(manager, answered)
    assert found == {None: 48, 16: 48, 0: 28}


def test_the_window_of_a_shared_prefix_is_cached_by_the_second_prompt() -> None:
    manager, shared = hybrid(0), list(range(22))
    prompts = [[*shared, *[number] * 30] for number in range(100, 104)]
    assert [serve(manager, str(number), prompt) for number, prompt in enumerate(prompts)] == [0, 0, 20, 20]
    manager = hybrid(None)
    assert [serve(manager, str(number), prompt) for number, prompt in enumerate(prompts)] == [0, 20, 20, 20]


def test_an_aligned_hit_has_a_complete_window() -> None:
    """The lookup must not truncate a longer hit: it has no blocks before its own window."""
    manager = KVCacheManager(200, groups=[GroupSpec("sliding_window", 4, 9), GroupSpec("full", 4)], alignment_tokens=16)
    serve(manager, "a", range(64))
    found = manager.get_computed_blocks(CacheRequest("b", [*range(30), 99]))
    assert found.num_tokens == 16
    window, full = found.groups
    assert manager.pool.null_block not in [*window[2:], *full]
    assert len(window) == len(full) == 4


@pytest.mark.parametrize("step", [1, 3, 8])
@pytest.mark.parametrize(
    "spec",
    [
        GroupSpec("full", 4),
        *(GroupSpec("sliding_window", 4, reach) for reach in (1, 6, 13)),
        GroupSpec("chunked_local", 4, 12),
    ],
)
def test_the_limit_of_blocks_in_use_is_reached_and_not_exceeded(spec: GroupSpec, step: int) -> None:
    limit, most = KVCacheManager(200, groups=[spec]).max_blocks_in_use(60, step), 0
    # The first step determines the positions of later steps within blocks.
    for first in range(1, step + 1):
        manager = KVCacheManager(200, groups=[spec])
        request = CacheRequest("r", list(range(60)))
        count = first
        while request.num_computed_tokens < 60:
            assert manager.allocate_slots(request, count) is not None
            table = manager.groups[0].tables["r"]
            most = max(most, sum(block is not manager.pool.null_block for block in table))
            request.num_computed_tokens += count
            count = min(step, 60 - request.num_computed_tokens)
    # One limit covers all positions of a chunk within blocks.
    assert limit - 2 <= most <= limit


def test_groups_with_unequal_blocks_cache_only_blocks_that_a_hit_can_reach() -> None:
    """As in vLLM: a hit ends at a multiple of all block sizes, and needs one window before its end."""
    manager = KVCacheManager(100, groups=[GroupSpec("full", 32), GroupSpec("sliding_window", 8, 8)])
    request = begin(manager, "a", [token for token in range(8) for _ in range(8)])
    window = manager.groups[1]
    assert [
        index for index, digest in enumerate(request.block_hashes) if window.get_cached_block(digest) is not None
    ] == [3, 7]
    manager = KVCacheManager(100, groups=[GroupSpec("full", 16), GroupSpec("full", 32)])
    request = begin(manager, "a", range(48))
    assert [len(group.num_cached) and group.num_cached["a"] for group in manager.groups] == [2, 1]


@pytest.mark.parametrize("full", [16, 32])
def test_a_shared_prefix_is_found_with_large_blocks_of_full_attention(full: int) -> None:
    manager = KVCacheManager(400, groups=[GroupSpec("full", full), GroupSpec("sliding_window", 16, 40, 0)])
    prompts = [[*range(1, 129), *range(own, own + 64)] for own in (1000, 2000, 3000)]
    assert [serve(manager, str(own), prompt) for own, prompt in enumerate(prompts)] == [0, 0, 128]


def test_block_hashes_may_be_finer_than_blocks() -> None:
    manager = KVCacheManager(100, 16, hash_block_size=4)
    assert (serve(manager, "a", range(50)), serve(manager, "b", range(50))) == (0, 48)
    assert hit_tokens(manager, range(40)) == 32
    with pytest.raises(ValueError, match="use a divisor of all block sizes"):
        KVCacheManager(100, 16, hash_block_size=5)


def test_a_retention_interval_fits_the_block_sizes() -> None:
    with pytest.raises(ValueError, match="use a multiple of 8 tokens"):
        KVCacheManager(100, groups=[GroupSpec("full", 8), GroupSpec("sliding_window", 4, 9, 12)])
    with pytest.raises(ValueError, match="no windows to retain"):
        GroupSpec("full", 8, retention_interval=16)


@pytest.mark.parametrize(("interval", "cached"), [(None, range(16)), (64, [3, 7, 11, 14, 15]), (0, [14])])
def test_a_model_with_windows_only_retains_the_same_windows(interval: int | None, cached: Sequence[int]) -> None:
    """As in vLLM's test_pure_swa_retention_interval_caches_sparse_tails."""
    manager = KVCacheManager(100, groups=[GroupSpec("sliding_window", 16, 16, interval)])
    request = begin(manager, "a", range(256))
    (window,) = manager.groups
    found = [at for at, digest in enumerate(request.block_hashes) if window.get_cached_block(digest) is not None]
    assert found == list(cached)


def test_evicted_blocks_are_computed_again() -> None:
    manager = KVCacheManager(100, 4)
    request = begin(manager, "a", range(18))
    ids = manager.get_block_ids("a")[0]
    manager.evict_blocks([ids[2], ids[4], 0])
    assert hit_tokens(manager, range(18)) == 8
    manager.free(request)
