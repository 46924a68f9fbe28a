"""Each eviction policy against a naive implementation."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.blocks.policies import POLICIES
from tests.reference.naive_orders import NaiveARC, NaiveLFU, NaiveS3FIFO

NAIVE: dict[str, Any] = {"lfu": NaiveLFU, "s3fifo": NaiveS3FIFO, "arc": NaiveARC}


def test_every_policy_has_a_naive_form() -> None:
    assert set(NAIVE) == set(POLICIES)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(st.integers(0, 14), min_size=1, max_size=3, unique=True), max_size=80), st.integers(3, 12))
def test_victims_equal_the_naive_forms(policy: str, uses: list[list[int]], capacity: int) -> None:
    real, plain = POLICIES[policy](capacity), NAIVE[policy](capacity)
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


@pytest.mark.parametrize("policy", POLICIES)
def test_an_empty_policy_raises_lookup_error(policy: str) -> None:
    real = POLICIES[policy](4)
    with pytest.raises(LookupError):
        real.pop()
    real.add(1)
    real.remove(1)
    with pytest.raises(LookupError):
        real.pop()


@pytest.mark.parametrize(("policy", "first"), [("lfu", "a"), ("arc", "a"), ("s3fifo", "b")])
def test_a_restored_key_is_idle_again(policy: str, first: str) -> None:
    """It is evicted next; S3-FIFO appends it, because a parent would be skipped at every eviction."""
    real = POLICIES[policy](3)
    for key in "abc":
        real.add(key)
    assert real.pop() == "a"
    real.restore("a")
    assert real.pop() == first
    real.restore(first)
    real.remove("a")
    real.add("a")
    popped = [real.pop() for _ in range(3)]
    assert sorted(popped) == ["a", "b", "c"]
    # It was used again, and the others were not.
    assert policy == "s3fifo" or popped[-1] == "a"
    with pytest.raises(LookupError):
        real.pop()
