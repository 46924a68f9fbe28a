"""Priorities: blocks of a lower priority are evicted first."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.doors import EVICTION
from tests.blocks.driver import hit_tokens, serve


def make(num_blocks: int, policy: str = "lru", *, priorities: bool = True) -> KVCacheManager:
    return KVCacheManager(num_blocks, 2, hasher=BlockHasher(seed="x"), policy=policy, priorities=priorities)


def test_a_hit_raises_the_priority_and_nothing_lowers_it() -> None:
    manager = make(14)
    serve(manager, "low", [1, 1, 2, 2, 3])
    serve(manager, "high", [1, 1, 2, 2, 4], priority=2)
    serve(manager, "low again", [1, 1, 2, 2, 5])
    for number in range(30):
        serve(manager, f"r{number}", [100 + number] * 9, priority=1)
    assert hit_tokens(manager, [1, 1, 2, 2, 3]) == 4


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=30), st.integers(6, 14))
def test_equal_priorities_are_plain_lru(prompts: list[list[int]], num_blocks: int) -> None:
    plain, prioritised = make(num_blocks, priorities=False), make(num_blocks)
    for number, prompt in enumerate(prompts):
        for manager in (plain, prioritised):
            serve(manager, str(number), prompt)
        assert [block.id for block in plain.pool.free_queue] == [block.id for block in prioritised.pool.free_queue]


@pytest.mark.parametrize("policy", EVICTION.names())
@settings(max_examples=40, deadline=None)
@given(prompts=st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=9), st.integers(0, 2)), max_size=30))
def test_the_queue_is_in_order_of_priority(policy: str, prompts: list[tuple[list[int], int]]) -> None:
    manager = make(14, policy)
    for number, (prompt, priority) in enumerate(prompts):
        serve(manager, str(number), prompt, priority=priority)
        ranks = [-1 if block.hash is None else block.priority for block in manager.pool.free_queue]
        assert ranks == sorted(ranks)
        by_hash: dict[bytes, int] = {}
        for block in manager.pool.blocks:
            if block.hash is not None:
                by_hash[block.hash] = max(by_hash.get(block.hash, 0), block.priority)
        for block in manager.pool.blocks:
            assert block.parent is None or by_hash[block.parent] >= block.priority, "a parent would be evicted first"
