"""A mirrored pool counts copies as the engine does."""

from collections import Counter, OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.mirror.apply_events import MirroredPool
from kvproxy.mirror.event_decoder import Hash, StoredEvent

SIZE = 2


def stored(hashes: list[Hash], parent: Hash | None = None) -> StoredEvent:
    return StoredEvent(hashes, parent, [token for name in hashes for token in (int(name), 0)], SIZE)


def copies(pool: MirroredPool) -> Counter[Any]:
    return Counter({name: block.copies for name, block in pool.blocks.items()})


class Engine:
    """Chains of blocks in a pool with LRU eviction, and the pool that mirrors it. Blocks 0, 10, 20, .. begin chains."""

    def __init__(self, capacity: int) -> None:
        self.pool = MirroredPool()
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


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.booleans()), max_size=60))
@settings(max_examples=50)
def test_every_copy_counts(requests: list[tuple[int, int, bool]]) -> None:
    engine = Engine(12)
    for chain, length, again in requests:
        engine.ask(chain, length, again)
        assert copies(engine.pool) == engine.names()
        assert engine.pool.num_copies == engine.names().total()


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
