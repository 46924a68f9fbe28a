"""Copies are counted as the engine makes them, whether it reports reuse or not."""

from collections import Counter, OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.mirror.event_decoder import Hash, StoredEvent
from kvproxy.mirror.pool import MirroredPool
from kvproxy.mirror.uncertain_blocks import MAX_TURNOVERS, UncertainBlocks

SIZE = 2


def stored(hashes: list[Hash], parent: Hash | None = None) -> StoredEvent:
    return StoredEvent(hashes, parent, [token for name in hashes for token in (int(name), 0)], SIZE)


def copies(pool: MirroredPool) -> Counter[Any]:
    return Counter({name: block.copies for name, block in pool.blocks.items()})


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
        # The last of a chain is given up first.
        for block in reversed(blocks):
            self.held.move_to_end(block)


requests = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.booleans()), max_size=60)


@given(requests)
def test_without_reports_every_copy_counts(requests: list[tuple[int, int, bool]]) -> None:
    engine = Engine(12, reports=False)
    for chain, length, again in requests:
        engine.ask(chain, length, again)
        assert copies(engine.pool) == engine.names()
        assert engine.pool.num_copies == engine.names().total()


@given(requests)
@settings(max_examples=50)
def test_a_report_is_no_copy_for_ever(requests: list[tuple[int, int, bool]]) -> None:
    engine = Engine(12, reports=True)
    engine.ask(0, 3)
    engine.ask(0, 3)
    assert copies(engine.pool) == Counter({0: 2, 1: 2, 2: 2}), "counted as long as it may be a copy"
    for chain, length, _ in requests:
        engine.ask(chain, length)
    # The pool's content is given up some times over.
    for number in range(12 * (MAX_TURNOVERS + 2)):
        engine.ask(10 + number, 2)
    assert copies(engine.pool) == engine.names()
    for chain, length, _ in requests:
        engine.ask(chain, length)
        assert copies(engine.pool) <= engine.names()


def test_what_a_window_never_held_is_not_shown_for_ever() -> None:
    pool = MirroredPool()
    pool.store(stored([3, 4], parent=2))
    for number in range(100, 140):
        # vLLM reports the places before a window too, which hold nothing.
        pool.store(stored([1, 2, 3, 4]))
        pool.store(stored([number], parent=99))
        pool.remove(number)
    assert set(pool.blocks) == {3, 4}
    assert pool.num_copies == 2


def test_a_copy_that_shows_life_is_kept() -> None:
    pool = MirroredPool()
    pool.store(stored([1, 2]))
    pool.store(stored([1, 2]))
    pool.remove(2)
    pool.remove(1)
    for number in range(100, 150):
        pool.store(stored([number], parent=2))
        pool.remove(number)
    assert copies(pool) == Counter([1, 2])
    pool.remove(1)
    assert copies(pool) == Counter([2])


def test_copies_that_are_certain_go_first() -> None:
    pool = MirroredPool()
    pool.store(stored([1, 2], parent=9))
    pool.store(stored([1, 2], parent=9))
    pool.store(stored([1, 2]))
    pool.remove(2)
    for number in range(100, 150):
        pool.store(stored([number], parent=99))
        pool.remove(number)
    # One of the two that are left is certain, so nothing is decided of the other one.
    assert copies(pool) == Counter([1, 1, 1, 2, 2])


def test_a_removed_block_is_followed_no_more() -> None:
    pool = MirroredPool()
    pool.store(stored([1, 2]))
    assert pool.find_child(1, (2, 0), None) is pool.blocks[2]
    pool.remove(2)
    assert pool.find_child(1, (2, 0), None) is None
    assert pool.children(1) == []


@pytest.mark.parametrize("first", [2, 9])
def test_of_two_names_of_equal_content_the_last_is_followed_until_it_goes(first: int) -> None:
    pool = MirroredPool()
    for name in (2, 9):
        pool.store(StoredEvent([name], 1, [5, 6], SIZE))
    assert pool.find_child(1, (5, 6), None) is pool.blocks[9]
    pool.remove(first)
    found = pool.find_child(1, (5, 6), None)
    assert found is (pool.blocks[9] if first == 2 else None)


def test_tokens_that_do_not_fit_the_names_are_not_believed() -> None:
    pool = MirroredPool()
    # Of three blocks the first fell out of the window.
    pool.store(StoredEvent([8, 9], 7, [1, 2, 3, 4, 5, 6], SIZE))
    assert [block.tokens for block in pool.blocks.values()] == [(), ()]
    assert pool.find_child(7, (1, 2), None) is None


def test_what_the_pool_held_before_a_removal_counts_too() -> None:
    """A pool that holds little gives up what it holds at once: that is no sign that the other copies were reports."""
    pool = MirroredPool()
    pool.store(StoredEvent([2], None, [2], 1))
    pool.store(StoredEvent([1, 2], None, [1, 2], 1))
    assert pool.remove(2)
    assert {digest: block.copies for digest, block in pool.blocks.items()} == {1: 1, 2: 1}


def removals_until_reports(uncertain: UncertainBlocks, num_copies: int) -> int:
    """How many removals of other blocks it takes until the doubtful copies are reports."""
    for number in range(1, 200):
        uncertain.remove(99, 0)
        if uncertain.take_reports(num_copies):
            return number
    raise AssertionError("it is never told")


def test_reports_are_told_once_the_pools_content_was_given_up_four_times() -> None:
    uncertain = UncertainBlocks()
    uncertain.update_pool_size(5)
    uncertain.add_uncertain(1, 2)
    uncertain.add_uncertain(1, 3)
    uncertain.update_pool_size(7)
    assert not uncertain
    # The certain one goes first: from now on nothing but doubtful copies is left.
    uncertain.remove(1, 2)
    assert uncertain
    assert (uncertain.take_reports(7), uncertain.are_reports) == ([], False)
    assert removals_until_reports(uncertain, 7) == MAX_TURNOVERS * 5 + 1
    assert uncertain.are_reports
    assert not uncertain


def test_a_reset_leaves_nothing_in_doubt() -> None:
    uncertain = UncertainBlocks()
    uncertain.add_uncertain(1, 1)
    uncertain.clear()
    assert not uncertain
    assert uncertain.take_reports(4) == []
    uncertain.add_uncertain(2, 1)
    uncertain.remove(3, 0)
    uncertain.mark_used(2)
    assert removals_until_reports(uncertain, 11) == MAX_TURNOVERS * 10 + 1


def test_what_is_left_of_doubtful_copies_is_told() -> None:
    uncertain = UncertainBlocks()
    uncertain.update_pool_size(1)
    for copies in (1, 2, 3):
        uncertain.add_uncertain(1, copies)
    uncertain.add_uncertain(2, 1)
    uncertain.remove(2, 0)
    uncertain.remove(1, 2)
    reports: list[tuple[Hash, int]] = []
    while not reports:
        uncertain.remove(99, 0)
        reports = uncertain.take_reports(3)
    assert reports == [(1, 2)]
    certain = UncertainBlocks()
    certain.add_uncertain(1, 1)
    certain.add_certain(1)
    assert not certain
