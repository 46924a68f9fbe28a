"""A mirrored pool counts copies as the engine does, whether or not it reports reuse."""

from collections import Counter, OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.mirror.event_decoder import Hash, StoredEvent
from kvproxy.mirror.pool import MirroredPool
from kvproxy.mirror.uncertain_blocks import MAX_TURNOVERS

SIZE = 2


def stored(hashes: list[Hash], parent: Hash | None = None) -> StoredEvent:
    return StoredEvent(hashes, parent, [token for name in hashes for token in (int(name), 0)], SIZE)


def copies(pool: MirroredPool) -> Counter[Any]:
    return Counter({name: block.copies for name, block in pool.blocks.items()})


def turn_over(pool: MirroredPool, parent: int = 99) -> None:
    """Store and remove more blocks than the pool holds."""
    for number in range(100, 150):
        pool.store(stored([number], parent))
        pool.remove(number)


class Engine:
    """Chains of blocks in a pool with LRU eviction, and the pool that mirrors it. Block n follows block n - 1, but 0, 10, 20, ..

    Args:
        reports: whether requests ask for reports of what they reuse.
    """

    def __init__(self, capacity: int, reports: bool) -> None:
        self.pool = MirroredPool()
        self.reports = reports
        self.held: OrderedDict[int, int] = OrderedDict()  # physical block -> name
        self._capacity = capacity
        self._next = 0

    def names(self) -> Counter[Any]:
        return Counter(self.held.values())

    def ask(self, chain: int, length: int, again: bool = False) -> None:
        """A request for the first blocks of a chain; `again` computes them whatever is held."""
        names = list(range(10 * chain, 10 * chain + length))
        hit = 0
        while not again and hit < length and names[hit] in self.held.values():
            hit += 1
        blocks = [next(block for block, held in self.held.items() if held == name) for name in names[:hit]]
        for block in blocks:
            self.held.move_to_end(block)
        if self.reports and hit:
            self.pool.store(stored(list(names[:hit])))
        for name in names[hit:]:
            if len(self.held) == self._capacity:
                self.pool.remove(self.held.popitem(last=False)[1])
            self.held[self._next] = name
            blocks.append(self._next)
            self._next += 1
        if hit < length:
            self.pool.store(stored(list(names[hit:]), names[hit - 1] if hit else None))
        # The last block of a chain is evicted first.
        for block in reversed(blocks):
            self.held.move_to_end(block)


requests = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.booleans()), max_size=60)


@given(requests)
@settings(max_examples=50)
def test_without_reports_every_copy_counts(requests: list[tuple[int, int, bool]]) -> None:
    engine = Engine(12, reports=False)
    for chain, length, again in requests:
        engine.ask(chain, length, again)
        assert copies(engine.pool) == engine.names()
        assert engine.pool.num_copies == engine.names().total()


@given(requests)
@settings(max_examples=30)
def test_reports_stop_counting_as_copies(requests: list[tuple[int, int, bool]]) -> None:
    engine = Engine(12, reports=True)
    engine.ask(0, 3)
    engine.ask(0, 3)
    assert copies(engine.pool) == Counter({0: 2, 1: 2, 2: 2}), "a report counts while it may be a copy"
    for chain, length, _ in requests:
        engine.ask(chain, length)
    # Evict the content of the pool several times.
    for number in range(12 * (MAX_TURNOVERS + 2)):
        engine.ask(10 + number, 2)
    assert copies(engine.pool) == engine.names()
    for chain, length, _ in requests:
        engine.ask(chain, length)
        assert copies(engine.pool) <= engine.names()


def test_reported_blocks_outside_a_window_disappear() -> None:
    pool = MirroredPool()
    pool.store(stored([3, 4], parent=2))
    for number in range(100, 140):
        # vLLM also reports positions before a window, which have no blocks.
        pool.store(stored([1, 2, 3, 4]))
        pool.store(stored([number], parent=99))
        pool.remove(number)
    assert set(pool.blocks) == {3, 4}
    assert pool.num_copies == 2


def test_a_used_uncertain_copy_is_kept() -> None:
    pool = MirroredPool()
    pool.store(stored([1, 2]))
    pool.store(stored([1, 2]))
    pool.remove(2)
    pool.remove(1)
    turn_over(pool, 2)
    assert copies(pool) == Counter([1, 2])
    pool.remove(1)
    assert copies(pool) == Counter([2])


def test_certain_copies_are_removed_first() -> None:
    pool = MirroredPool()
    pool.store(stored([1, 2], parent=9))
    pool.store(stored([1, 2], parent=9))
    pool.store(stored([1, 2]))
    pool.remove(2)
    turn_over(pool)
    # One of the two remaining copies is certain, so the other one stays uncertain.
    assert copies(pool) == Counter([1, 1, 1, 2, 2])


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


def test_one_removal_in_a_small_pool_does_not_prove_reports() -> None:
    pool = MirroredPool()
    pool.store(StoredEvent([2], None, [2], 1))
    pool.store(StoredEvent([1, 2], None, [1, 2], 1))
    assert pool.remove(2)
    assert {digest: block.copies for digest, block in pool.blocks.items()} == {1: 1, 2: 1}


def test_a_reset_forgets_uncertain_copies() -> None:
    pool = MirroredPool()
    pool.store(stored([1, 2]))
    pool.store(stored([1, 2]))
    pool.clear()
    pool.store(stored([1, 2]))
    turn_over(pool)
    assert copies(pool) == Counter([1, 2])
