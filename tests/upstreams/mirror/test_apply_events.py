"""The index of a mirrored pool by content; `test_matching.py` compares pools with an engine."""

import pytest

from kvproxy.upstreams.mirror.apply_events import MirroredPool, MirrorState, Removals
from kvproxy.upstreams.mirror.event_decoder import EventBatch, Hash, RemovedEvent, StoredEvent

SIZE = 2


def stored(hashes: list[Hash], parent: Hash | None = None) -> StoredEvent:
    return StoredEvent(hashes, parent, [token for name in hashes for token in (int(name), 0)], SIZE)


def test_a_removed_block_is_not_found_by_content() -> None:
    pool = MirroredPool()
    pool.store(stored([1, 2]))
    assert pool.find_child(1, (2, 0), None) is pool.blocks[2]
    pool.remove(2)
    assert pool.find_child(1, (2, 0), None) is None
    assert pool.children(1) == []


@pytest.mark.parametrize("first", [2, 9])
def test_the_newest_block_of_equal_content_is_found(first: int) -> None:
    pool = MirroredPool()
    for name in (2, 9):
        pool.store(StoredEvent([name], 1, [5, 6], SIZE))
    assert pool.find_child(1, (5, 6), None) is pool.blocks[9]
    pool.remove(first)
    found = pool.find_child(1, (5, 6), None)
    assert found is (pool.blocks[9] if first == 2 else None)


def test_tokens_that_do_not_fit_the_hashes_are_ignored() -> None:
    pool = MirroredPool()
    # The first of three blocks is outside of the window.
    pool.store(StoredEvent([8, 9], 7, [1, 2, 3, 4, 5, 6], SIZE))
    assert [block.tokens for block in pool.blocks.values()] == [(), ()]
    assert pool.find_child(7, (1, 2), None) is None


@pytest.mark.parametrize("removals", ["each copy", "last copy"])
def test_published_numbers_of_copies_are_exact(removals: Removals) -> None:
    state = MirrorState()
    if removals == "last copy":
        state.count_last_removals()
    state.apply(EventBatch(1.0, [stored([1, 2]), stored([1, 2]), stored([1])], None))
    (pool,) = state.pools.values()
    state.apply(EventBatch(2.0, [RemovedEvent([1, 2], remaining_copies=[2, 0])], None))
    assert {digest: block.copies for digest, block in pool.blocks.items()} == {1: 2}
    # Events were lost: fewer copies are known than remain.
    state.apply(EventBatch(3.0, [RemovedEvent([1], remaining_copies=[5])], None))
    assert pool.num_copies == pool.blocks[1].copies == 2
