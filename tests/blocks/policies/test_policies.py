"""S3-FIFO against a naive implementation."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.eviction.s3fifo import S3FIFO


class NaiveS3FIFO:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.small: list[Any] = []
        self.main: list[Any] = []
        self.ghosts: list[Any] = []
        self.uses: dict[Any, int] = {}
        self.busy: list[Any] = []

    def add(self, key: Any) -> None:
        if key in self.busy:
            self.busy.remove(key)
        elif key in self.ghosts:
            self.ghosts.remove(key)
            self.uses[key] = 0
            self.main.append(key)
        else:
            self.uses[key] = 0
            self.small.append(key)

    def remove(self, key: Any) -> None:
        self.busy.append(key)
        self.uses[key] = min(self.uses[key] + 1, 3)

    def pop(self) -> Any:
        while True:
            idle_in_main = [key for key in self.main if key not in self.busy]
            if self.small and (10 * len(self.small) > self.capacity or not idle_in_main):
                key = self.small.pop(0)
                if key in self.busy:
                    self.main.append(key)
                elif self.uses[key]:
                    self.uses[key] = 0
                    self.main.append(key)
                else:
                    self.ghosts = [*self.ghosts, key][-self.capacity :]
                    return key
            else:
                key = self.main.pop(0)
                if key not in self.busy and not self.uses[key]:
                    return key
                if key not in self.busy:
                    self.uses[key] -= 1
                self.main.append(key)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.integers(0, 14), min_size=1, max_size=3, unique=True), max_size=80), st.integers(3, 12))
def test_victims_equal_the_naive_form(uses: list[list[int]], capacity: int) -> None:
    real, plain = S3FIFO[int](capacity), NaiveS3FIFO(capacity)
    held: set[int] = set()
    for batch in uses:
        # Keys of a batch are in use at the same time, as blocks of one request are.
        for key in batch:
            if key in held:
                real.remove(key)
                plain.remove(key)
        held |= set(batch)
        while len(held) > capacity:
            victim = real.pop()
            assert victim == plain.pop()
            assert victim not in batch
            held.remove(victim)
        for key in batch:
            real.add(key)
            plain.add(key)


def test_an_empty_policy_raises_lookup_error() -> None:
    real = S3FIFO[int](4)
    with pytest.raises(LookupError):
        real.pop()
    real.add(1)
    real.remove(1)
    with pytest.raises(LookupError):
        real.pop()


def test_a_restored_key_is_idle_again_behind_the_others() -> None:
    """At the front, a parent would be skipped at every eviction."""
    real = S3FIFO[str](3)
    for key in "abc":
        real.add(key)
    assert real.pop() == "a"
    real.restore("a")
    assert [real.pop() for _ in range(3)] == ["b", "c", "a"]
